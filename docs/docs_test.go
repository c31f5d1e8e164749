/*
Copyright The cnat Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package docs checks the documentation without a cluster. hack/integration runs its commands.
package docs

import (
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const root = ".."

// maxReadmeWords is how much of the README a visitor reads.
const maxReadmeWords = 900

var (
	codeBlock  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	fence      = regexp.MustCompile("(?m)^ *```(.*)$")
	language   = regexp.MustCompile(`^(console|go|mermaid|text|yaml|sh needs=".+")$`)
	codeSpan   = regexp.MustCompile("`[^`\n]+`")
	link       = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#+ (.*)$`)
	headingURL = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	testName   = regexp.MustCompile(`\bTest[A-Z]\w*`)
	// testRows matches the name of a test and rows of its table.
	testRows   = regexp.MustCompile("`(Test\\w+)`(?: in `[^`]+`)?: (\"[^\"\n]+\"(?:, \"[^\"\n]+\")*)")
	quoted     = regexp.MustCompile(`"([^"]+)"`)
	repoPath   = regexp.MustCompile(`^(\.ci|\.github|artifacts|cmd|docs|hack|pkg|signals)/[\w./-]*$`)
	identifier = regexp.MustCompile(`^(?:\w+\.)*([A-Za-z]\w*)(?:\(\))?$`)
	camelCase  = regexp.MustCompile(`[a-z][A-Z]`)

	anyWord  = regexp.MustCompile(`\w+`)
	flagName = regexp.MustCompile(`(?:^|[\s,])--?([a-z][a-z0-9-]+)`)
	goBlock  = regexp.MustCompile("(?ms)^ *```(?:go|yaml\n(?:healthCheckExprs:))\n(.*?)^ *```$")
	words    = regexp.MustCompile(`(?m)^([^#\t\n][^\t\n]*)\t+([^\t\n]+)$`)

	kubernetesVersion = regexp.MustCompile(`v1\.\d+\.\d+`)

	// An input and its meaning, in the table and on the page about times.
	timesRow     = regexp.MustCompile(`(?m)^(\S.*?) +(?:=>|!!) (.*)$`)
	timesExample = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.*) \\|$")
)

// TestLinks follows the links to files of the repository, and to their headings. Links to other
// hosts are not followed: the tests run without a network.
func TestLinks(t *testing.T) {
	for path, text := range files(t, ".md") {
		text = codeSpan.ReplaceAllString(codeBlock.ReplaceAllString(text, ""), "")
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			target, err := url.Parse(match[1])
			if err != nil {
				t.Errorf("%s: %s: %v", path, match[1], err)
				continue
			}
			// The badge of the workflow, which has its place beside the files on the web.
			if target.Host != "" || strings.HasPrefix(target.Path, "../../actions/") {
				continue
			}
			file := path
			if target.Path != "" {
				file = filepath.Join(filepath.Dir(path), target.Path)
			}
			content, err := os.ReadFile(filepath.Join(root, file))
			if info, statErr := os.Stat(filepath.Join(root, file)); statErr == nil && info.IsDir() {
				err = nil
			}
			switch {
			case err != nil:
				t.Errorf("%s: the link %s leads nowhere: %v", path, match[1], err)
			case target.Fragment != "" && !anchors(string(content))[target.Fragment]:
				t.Errorf("%s: the link %s leads to no heading", path, match[1])
			}
		}
	}
}

// TestBlocks finds the language of each block. The tests in hack/integration run those marked
// console. One marked sh says what it needs that a test does not have.
func TestBlocks(t *testing.T) {
	for path, text := range files(t, ".md") {
		for i, match := range fence.FindAllStringSubmatch(text, -1) {
			if i%2 == 0 && !language.MatchString(match[1]) {
				t.Errorf("%s has a block marked %q: mark commands as console, or as sh needs=\"...\" if no test can run them", path, match[1])
			}
		}
	}
}

// foreign are names and flags of other programs, which the pages name, too.
var foreign = map[string]bool{
	"successfulJobsHistoryLimit": true, "failedJobsHistoryLimit": true, // of a CronJob
	"manualSelector": true, "podReplacementPolicy": true, // of a Job
	"shardSelector": true, "shardInfo": true, "ShardedListAndWatch": true, // of KEP-5866
	"manifest-url": true, "reset-then-reuse-values": true, "take-ownership": true, // of krew and Helm
	"show-managed-fields": true, // of kubectl
}

// TestNames finds what the pages name in the code: tests, files, flags, functions and fields.
func TestNames(t *testing.T) {
	sources := files(t, ".go", ".sh", ".yaml")
	code := strings.Join(slices.Collect(maps.Values(sources)), "\n")
	isWord := map[string]bool{}
	for _, word := range anyWord.FindAllString(code, -1) {
		isWord[word] = true
	}
	pages, found := files(t, ".md"), 0
	delete(pages, "CHANGELOG.md") // It names what is gone.
	for path, text := range pages {
		for _, name := range testName.FindAllString(text, -1) {
			found++
			if !strings.Contains(code, "func "+name+"(") {
				t.Errorf("%s names %s, which does not exist", path, name)
			}
		}
		for _, match := range testRows.FindAllStringSubmatch(text, -1) {
			for _, row := range quoted.FindAllStringSubmatch(match[2], -1) {
				found++
				begin, _, _ := strings.Cut(row[1], " …")
				isIn := func(source string) bool {
					return strings.Contains(source, "func "+match[1]+"(") && strings.Contains(source, begin)
				}
				if !slices.ContainsFunc(slices.Collect(maps.Values(sources)), isIn) {
					t.Errorf("%s names row %q of %s, which does not exist", path, row[1], match[1])
				}
			}
		}
		for _, span := range codeSpan.FindAllString(text, -1) {
			name := strings.Trim(span, "`")
			if repoPath.MatchString(name) {
				found++
				if _, err := os.Stat(filepath.Join(root, name)); err != nil {
					t.Errorf("%s names %s: %v", path, name, err)
				}
			}
			match := identifier.FindStringSubmatch(name)
			if match != nil && !foreign[match[1]] && (camelCase.MatchString(name) || path == "docs/contributing/architecture.md") {
				found++
				if !isWord[match[1]] {
					t.Errorf("%s names %s, which is not in the code", path, name)
				}
			}
			for _, match := range flagName.FindAllStringSubmatch(name, -1) {
				found++
				// Or the end of a name, such as that of a rehearsal's Pod.
				isKnown := func(prefix, suffix string) bool { return strings.Contains(code, prefix+match[1]+suffix) }
				if !foreign[match[1]] && !isKnown(`"`, `"`) && !isKnown("--", "") && !isKnown(" -", "") && !isKnown(`"-`, `"`) {
					t.Errorf("%s names the flag %s, which is not in the code", path, match[1])
				}
			}
		}
	}
	if found < 500 {
		t.Errorf("only %d names were found", found)
	}
}

// TestQuotedCode finds the Go code and the comments that the pages quote, in which […] leaves something out,
// and the health checks for Flux.
func TestQuotedCode(t *testing.T) {
	plain := func(text string) string {
		return strings.Join(strings.Fields(strings.ReplaceAll(text, "//", "")), " ")
	}
	code := map[string]string{}
	for path, text := range files(t, ".go", "flux-kustomization.yaml") {
		code[path] = plain(text)
	}
	quotes := 0
	for path, text := range files(t, ".md") {
		for _, match := range goBlock.FindAllStringSubmatch(text, -1) {
			quotes++
			isQuoted := func(source string) bool {
				for part := range strings.SplitSeq(match[1], "[…]") {
					_, after, found := strings.Cut(source, plain(part))
					if !found {
						return false
					}
					source = after
				}
				return true
			}
			if !slices.ContainsFunc(slices.Collect(maps.Values(code)), isQuoted) {
				t.Errorf("%s quotes this, which is not in the code:\n%s", path, match[1])
			}
		}
	}
	if quotes < 2 {
		t.Errorf("the pages have %d quotes", quotes)
	}
}

// TestTestedVersions finds the older versions of Kubernetes in the workflow that tests them.
func TestTestedVersions(t *testing.T) {
	workflow, page := files(t, "older.yaml")[".github/workflows/older.yaml"], files(t, ".md")["docs/compatibility.md"]
	versions := kubernetesVersion.FindAllString(workflow, -1)
	if len(versions) < 4 {
		t.Errorf("the workflow tests only %v", versions)
	}
	for _, version := range versions {
		if !strings.Contains(page, strings.TrimPrefix(version, "v")) {
			t.Errorf("docs/compatibility.md does not have %s", version)
		}
	}
}

// TestIndex finds each page in the index.
func TestIndex(t *testing.T) {
	index, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for path := range files(t, ".md") {
		if page, ok := strings.CutPrefix(path, "docs/"); ok && page != "README.md" && !strings.Contains(string(index), "("+page+")") {
			t.Errorf("docs/README.md does not link to %s", page)
		}
	}
}

// TestSections finds in each task and in the tutorial what kubernetes.io has in them. hack/integration wants nothing to be
// left after the clean up.
func TestSections(t *testing.T) {
	pages := 0
	for path, text := range files(t, ".md") {
		if !strings.HasPrefix(path, "docs/tasks/") && path != "docs/tutorial.md" {
			continue
		}
		pages++
		rest := text
		for _, section := range []string{"Before you begin", "Clean up", "What's next"} {
			_, after, found := strings.Cut(rest, "\n## "+section+"\n")
			if !found {
				t.Errorf("%s has no section %q, or not in this order", path, section)
				continue
			}
			rest = after
		}
	}
	if pages < 2 {
		t.Errorf("there are %d tasks and tutorials", pages)
	}
}

// TestReadmeIsShort counts what wc -w counts.
func TestReadmeIsShort(t *testing.T) {
	if count := len(strings.Fields(files(t, ".md")["README.md"])); count > maxReadmeWords {
		t.Errorf("README.md has %d words: move what is not for every visitor to docs, %d are the limit", count, maxReadmeWords)
	}
}

// TestWords finds the words of hack/words.txt in prose and in manifests.
func TestWords(t *testing.T) {
	list, err := os.ReadFile(filepath.Join(root, "hack/words.txt"))
	if err != nil {
		t.Fatal(err)
	}
	texts := files(t, ".md", ".yaml", ".yml")
	delete(texts, ".golangci.yaml") // The same words.
	// These have the words of Kubernetes about the Pod template.
	delete(texts, "artifacts/examples/cnat-crd.yaml")
	delete(texts, "artifacts/install.yaml")
	delete(texts, "artifacts/chart/manifests/cnat-crd.yaml")
	pairs := words.FindAllStringSubmatch(string(list), -1)
	if len(pairs) == 0 {
		t.Fatal("hack/words.txt has no words")
	}
	for _, pair := range pairs {
		odd, err := regexp.Compile(`(?i)\b(` + strings.ReplaceAll(pair[1], " ", `[\s#]+`) + `)\b`)
		if err != nil {
			t.Fatalf("hack/words.txt: %v", err)
		}
		for path, text := range texts {
			for _, at := range odd.FindAllStringIndex(text, -1) {
				t.Errorf("%s:%d: write %q instead of %q", path, 1+strings.Count(text[:at[0]], "\n"), pair[2], text[at[0]:at[1]])
			}
		}
	}
}

// TestReference finds each reason and each metric in the reference.
func TestReference(t *testing.T) {
	sources := files(t, ".go")
	for page, names := range map[string]struct {
		dir     string
		pattern *regexp.Regexp
	}{
		"docs/reference/reasons.md": {"pkg/apis/cnat/v1alpha1", regexp.MustCompile(`(?m)^\s*(?:const )?Reason\w+ += "(\w+)"`)},
		"docs/reference/metrics.md": {"pkg", regexp.MustCompile(`"(cnat_\w+)"`)},
	} {
		text, found := files(t, ".md")[page], 0
		for path, source := range sources {
			if !strings.HasPrefix(path, names.dir+"/") || strings.HasSuffix(path, "_test.go") {
				continue
			}
			for _, match := range names.pattern.FindAllStringSubmatch(source, -1) {
				found++
				if !strings.Contains(text, "`"+match[1]+"`") {
					t.Errorf("%s does not have %s of %s", page, match[1], path)
				}
			}
		}
		if found < 10 {
			t.Errorf("only %d names were found for %s", found, page)
		}
	}
}

// TestTimes finds the examples of the page about times in the table that the program is tested
// with.
func TestTimes(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, "cmd/kubectl-at/timespec/testdata/times.txt"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(content), "\nnow: 2026-11-25T14:30:12+01:00 Europe/Berlin\n")
	table, _, _ = strings.Cut(table, "\nnow: ")
	meanings := map[string]string{}
	for _, row := range timesRow.FindAllStringSubmatch(table, -1) {
		meanings[row[1]] = row[2]
	}
	examples := timesExample.FindAllStringSubmatch(files(t, ".md")["docs/reference/times.md"], -1)
	for _, example := range examples {
		if want := meanings[example[1]]; example[2] != want {
			t.Errorf("docs/reference/times.md says about %q:\n%s, want:\n%s", example[1], example[2], want)
		}
	}
	if len(examples) < 100 {
		t.Errorf("only %d examples were found", len(examples))
	}
}

// files returns the files of the repository that end in one of the suffixes, by their paths.
func files(t *testing.T, suffixes ...string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if err == nil && (entry.Name() == ".git" || entry.Name() == "testdata") {
				return filepath.SkipDir
			}
			return err
		}
		for _, suffix := range suffixes {
			if strings.HasSuffix(path, suffix) {
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				name, err := filepath.Rel(root, path)
				texts[filepath.ToSlash(name)] = string(content)
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// anchors returns the anchors of the headings of a page, as GitHub makes them.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(page, ""), -1) {
		text := headingURL.ReplaceAllString(match[1], "$1")
		anchor := strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, text)
		found[anchor] = true
	}
	return found
}
