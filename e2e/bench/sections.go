package main

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// head is the beginning of docs/performance/performance.md.
const head = "# Performance\n\nWhat pullgated costs, beside other programs in its place. Written by `make bench`; do not edit it.\n"

// order returns the titles of the sections.
func order() []string { return []string{"Calls", "Start", "Containers"} }

// sections are parts of docs/performance/performance.md, by title.
type sections struct{ text map[string]string }

func (s *sections) add(title, text string) {
	if s.text == nil {
		s.text = map[string]string{}
	}
	s.text[title] = wrap(strings.TrimSpace(text))
}

// wrap breaks lines of prose before column 120.
func wrap(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		for len(line) > 121 && !strings.HasPrefix(line, "|") {
			space := strings.LastIndexByte(line[:121], ' ')
			if space < 0 {
				break
			}
			b.WriteString(line[:space] + "\n")
			line = line[space+1:]
		}
		b.WriteString(line)
	}
	return b.String()
}

func (s *sections) String() string {
	var b strings.Builder
	b.WriteString(head)
	for _, title := range order() {
		if text, ok := s.text[title]; ok {
			b.WriteString("\n## " + title + "\n\n" + text + "\n")
		}
	}
	return b.String()
}

// write writes the sections to a file; those of the file that were not measured stay.
func (s *sections) write(path string) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	all := sections{}
	for part := range strings.SplitSeq(string(old), "\n## ") {
		if title, text, ok := strings.Cut(part, "\n"); ok && slices.Contains(order(), title) {
			all.add(title, text)
		}
	}
	for title, text := range s.text {
		all.add(title, text)
	}
	return os.WriteFile(path, []byte(all.String()), 0o644)
}
