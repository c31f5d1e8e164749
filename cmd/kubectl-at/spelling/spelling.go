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

// Package spelling finds the word that a misspelled one stands for.
package spelling

// Nearest returns the most similar word in a list, and false if none is similar: it must begin
// with the same letter and differ by one letter, or by two if the word has eight or more. Shorter
// words than four letters are similar to too many others.
func Nearest(word string, words []string) (string, bool) {
	if len(word) < 4 {
		return "", false
	}
	most := 1
	if len(word) >= 8 {
		most = 2
	}
	best, found := "", false
	for _, candidate := range words {
		if len(candidate) < 3 || candidate[0] != word[0] || max(len(candidate)-len(word), len(word)-len(candidate)) > most {
			continue
		}
		if d := distance(word, candidate); d <= most {
			best, most, found = candidate, d-1, true
		}
	}
	return best, found
}

// distance returns how many letters must be added, removed, replaced, or swapped with
// their neighbor to turn one word into the other.
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := d[i-1][j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
