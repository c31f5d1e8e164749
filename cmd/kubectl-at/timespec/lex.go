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

package timespec

import (
	"slices"
	"strings"
)

// kind is the kind of a token.
type kind int

const (
	end     kind = iota
	number       // digits
	word         // a word of the grammar
	zone         // the name of a time zone
	sign         // one of : . , / - +
	unknown      // anything else
)

// token is a part of the text.
type token struct {
	kind kind
	// text is in lower case, except for a zone, whose name is spelled as in the database.
	text string
	span
	// joined is true if there is no space before the token.
	joined bool
}

// span is the position of a word in the text, in bytes.
type span struct {
	from, to int
}

// through returns the span that begins with s and ends with last.
func (s span) through(last span) span {
	return span{s.from, last.to}
}

const (
	spaces  = " \t\n\v\f\r"
	digits  = "0123456789"
	letters = "abcdefghijklmnopqrstuvwxyz"
	signs   = ":.,/-+"
)

// lex returns the tokens of a text. The last one is the end.
func lex(text string) []token {
	text = lower(text)
	var tokens []token
	at := 0
	add := func(kind kind, length int) {
		t := token{kind: kind, text: text[at : at+length], span: span{at, at + length}}
		t.joined = at > 0 && !strings.Contains(spaces, text[at-1:at])
		if kind == zone {
			t.text = zoneNames()[t.text]
		}
		tokens = append(tokens, t)
		at += length
	}
	for at < len(text) {
		rest := text[at:]
		if n := prefix(rest, spaces); n > 0 {
			at += n
		} else if n := prefix(rest, digits); n > 0 {
			add(number, n)
		} else if n := zonePrefix(rest); n > 0 {
			add(zone, n)
		} else if n := pathLike(rest); n > 0 {
			add(unknown, n)
		} else if n := prefix(rest, letters); n > 0 && n < wordLength(rest) {
			add(unknown, wordLength(rest))
		} else if n > 0 {
			for _, part := range split(rest[:n]) {
				switch {
				case slices.Contains(zoneWords, part):
					add(zone, len(part))
				case isWord(part):
					add(word, len(part))
				default:
					add(unknown, len(part))
				}
			}
		} else if strings.Contains(signs, rest[:1]) {
			add(sign, 1)
		} else {
			add(unknown, wordLength(rest))
		}
	}
	add(end, 0)
	return tokens
}

// lower returns s with A to Z in lower case, and with the same length. A time contains no
// other letters.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// prefix returns how many bytes at the start of s are in chars.
func prefix(s, chars string) int {
	return len(s) - len(strings.TrimLeft(s, chars))
}

// zonePrefix returns the length of the longest name of a time zone at the start of s.
func zonePrefix(s string) int {
	if prefix(s, letters) == 0 {
		return 0
	}
	const chars = letters + digits + "_/"
	for n := prefix(s[:min(len(s), 40)], chars+"+-"); n > 0; n-- { // No name is longer.
		if n < len(s) && strings.Contains(chars, s[n:n+1]) {
			continue
		}
		if _, ok := zoneNames()[s[:n]]; ok {
			return n
		}
	}
	return 0
}

// wordLength returns how many bytes precede the first space, digit or sign in s.
func wordLength(s string) int {
	if n := strings.IndexAny(s, spaces+digits+signs); n >= 0 {
		return n
	}
	return len(s)
}

// pathLike returns the length of a prefix of s that looks like the name of a time zone:
// it starts with a letter, and contains a slash or an underscore between letters.
func pathLike(s string) int {
	n := prefix(s, letters)
	if n == 0 || n+1 >= len(s) || !strings.Contains("/_", s[n:n+1]) || !strings.Contains(letters, s[n+1:n+2]) {
		return 0
	}
	return prefix(s, letters+digits+"_/-+")
}

// split returns the words that are joined in s, or s itself if it is a word or contains
// anything else. Each part has at least two letters, so that a misspelled word is seldom
// split.
func split(s string) []string {
	if isWord(s) || len(s) > 40 {
		return []string{s}
	}
	for n := len(s) - 2; n >= 2; n-- {
		if !isWord(s[:n]) {
			continue
		}
		if rest := split(s[n:]); isWord(rest[0]) {
			return append([]string{s[:n]}, rest...)
		}
	}
	return []string{s}
}
