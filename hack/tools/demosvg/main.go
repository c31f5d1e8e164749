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

// Command demosvg draws the output of hack/demo.sh, on its standard input, as an SVG picture of a
// terminal. Bold lines are headings, or commands if they begin with "$ ". Only the sections whose
// headings are its arguments are drawn.
//
// Usage: demosvg HEADING... <OUTPUT >PICTURE.svg
package main

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	columns    = 118
	fontSize   = 13
	charWidth  = 7.83 // of a monospace font of that size
	lineHeight = 18
	margin     = 16
	bar        = 28 // of the window

	bold, normal = "\x1b[1m", "\x1b[0m"
)

type line struct{ class, text string }

func main() {
	if err := run(os.Stdin, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "demosvg:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, headings []string) error {
	var lines []line
	drawn := false
	scanner := bufio.NewScanner(in)
	for scanner.Scan() {
		text, isBold := strings.CutPrefix(scanner.Text(), bold)
		text = strings.TrimRight(strings.ReplaceAll(text, normal, ""), " ")
		command, isCommand := strings.CutPrefix(text, "$ ")
		switch {
		case isBold && !isCommand:
			before := len(headings)
			headings = slices.DeleteFunc(headings, func(heading string) bool { return heading == text })
			if drawn = len(headings) < before; drawn {
				lines = append(lines, line{"heading", "# " + text})
			}
		case !drawn:
		case isBold:
			lines = append(lines, wrap("command", "$ "+command)...)
		default:
			lines = append(lines, wrap("output", text)...)
		}
	}
	if err := scanner.Err(); err != nil {
		return err
	}
	if len(headings) > 0 {
		return fmt.Errorf("the output has no headings %q: see hack/demo.sh", headings)
	}
	for len(lines) > 0 && lines[len(lines)-1].text == "" {
		lines = lines[:len(lines)-1]
	}
	return draw(out, lines)
}

// wrap breaks a long line, between words if it can.
func wrap(class, text string) []line {
	runes := []rune(text)
	var lines []line
	for len(runes) > columns {
		end := columns
		for i := columns; i > columns/2; i-- {
			if runes[i] == ' ' {
				end = i
				break
			}
		}
		lines = append(lines, line{class, string(runes[:end])})
		runes = []rune(strings.TrimPrefix(string(runes[end:]), " "))
	}
	return append(lines, line{class, string(runes)})
}

func draw(out io.Writer, lines []line) error {
	width, height := columns*charWidth+2*margin, bar+len(lines)*lineHeight+margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img">
<!-- Made by hack/record-demo.sh from the output of hack/demo.sh. -->
<title>hack/demo.sh</title>
<style>
text { font: %dpx ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre; fill: #d0d7de }
.heading { fill: #8b949e }
.command { fill: #7ee787; font-weight: bold }
</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
<circle cx="18" cy="15" r="5" fill="#ff5f56"/><circle cx="36" cy="15" r="5" fill="#ffbd2e"/><circle cx="54" cy="15" r="5" fill="#27c93f"/>
`, width, height, width, height, fontSize)
	for i, line := range lines {
		if line.text == "" {
			continue
		}
		fmt.Fprintf(&b, `<text class="%s" x="%d" y="%d" textLength="%.0f" lengthAdjust="spacingAndGlyphs" xml:space="preserve">`,
			line.class, margin, bar+(i+1)*lineHeight-4, float64(utf8.RuneCountInString(line.text))*charWidth)
		if err := xml.EscapeText(&b, []byte(line.text)); err != nil {
			return err
		}
		b.WriteString("</text>\n")
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(out, b.String())
	return err
}
