package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// A page is a document of docs/ that is also a manual page.
type page struct {
	file    string // in docs/
	name    string
	section string
	short   string
	seeAlso string
}

func pages() []page {
	return []page{
		{
			"pullgated.md", "pullgated", "8", "verify image pull credentials for each pod of a node",
			"**pullgated-config.yaml**(5), **pullgatectl**(1), /usr/share/doc/pullgate",
		},
		{
			"pullgate-policyd.md", "pullgate-policyd", "8", "ask image review backends, and serve the admission webhook",
			"**pullgated**(8), **pullgatectl**(1), /usr/share/doc/pullgate",
		},
		{
			"configuration.md", "pullgated-config.yaml", "5", "configuration file of pullgated",
			"**pullgated**(8), **pullgatectl**(1), /usr/share/doc/pullgate/examples/config.yaml",
		},
	}
}

// writeManual writes a manual page for each command of root into dir, and one for each of pages in docs unless docs is
// "". Their date is SOURCE_DATE_EPOCH.
func writeManual(root *cobra.Command, dir, docs string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // every user may read manual pages
		return err
	}
	date, err := sourceDate()
	if err != nil {
		return err
	}
	header := doc.GenManHeader{Section: "1", Date: &date, Source: source(), Manual: "pullgate"}
	if err := doc.GenManTree(root, &header, filepath.Clean(dir)); err != nil {
		return err
	}
	if docs == "" {
		return nil
	}
	for _, p := range pages() {
		text, err := os.ReadFile(filepath.Join(docs, p.file))
		if err != nil {
			return err
		}
		out := md2man.Render(p.markdown(text, date))
		if err := os.WriteFile(filepath.Join(dir, p.name+"."+p.section), out, 0o644); err != nil { //nolint:gosec // as above
			return err
		}
	}
	return nil
}

// sourceDate returns the time of SOURCE_DATE_EPOCH. If that is not set, it always returns the same time, so that two
// builds of a commit are equal.
func sourceDate() (time.Time, error) {
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

var released = regexp.MustCompile(`^v\d+\.\d+\.\d+(-rc\.\d+)?$`)

// source returns the left part of the footer: a longer version would overlap the date in the middle.
func source() string {
	if released.MatchString(program.Version) {
		return "pullgate " + strings.TrimPrefix(program.Version, "v")
	}
	return "pullgate"
}

var (
	titleLine = regexp.MustCompile(`\A# .*\n\n`)
	firstCode = regexp.MustCompile(`\A(    .*\n)+`)
	linkText  = regexp.MustCompile(`\[([^\]]+)\]\([^)\n]+\)`)
	tableRule = regexp.MustCompile(`^\|[-| ]+\|$`)
)

// markdown converts a document to the form that md2man expects: with a title block and sections, without links to other
// documents, and with definition lists instead of tables, whose columns would not fit into a terminal.
func (p page) markdown(text []byte, date time.Time) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%% %q %q %q %q %q\n", strings.ToUpper(p.name), p.section, date.Format("Jan 2006"), source(), "pullgate")
	fmt.Fprintf(&b, "# NAME\n%s - %s\n\n", p.name, p.short)
	text = titleLine.ReplaceAll(text, nil)
	text = linkText.ReplaceAll(text, []byte("$1"))
	if synopsis := firstCode.Find(text); synopsis != nil {
		fmt.Fprintf(&b, "# SYNOPSIS\n\n%s\n", synopsis)
		text = text[len(synopsis):]
	}
	b.WriteString("# DESCRIPTION\n")
	var head []string // the cells of the first row while inside a table
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		cells := cellsOf(line)
		switch {
		case cells == nil:
			head = nil
			if title, ok := strings.CutPrefix(line, "## "); ok {
				line = "# " + strings.ToUpper(title)
			} else if strings.HasPrefix(line, "### ") {
				line = line[1:]
			}
		case tableRule.MatchString(line):
			continue
		case head == nil:
			head = cells
			continue
		default:
			line = definition(head, cells)
		}
		b.WriteString(line + "\n")
	}
	fmt.Fprintf(&b, "\n# SEE ALSO\n%s\n", p.seeAlso)
	return b.Bytes()
}

// cellsOf returns the cells of a row of a table, nil for another line.
func cellsOf(line string) []string {
	if !strings.HasPrefix(line, "| ") {
		return nil
	}
	cells := strings.Split(strings.Trim(line, "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

// definition converts a row to an entry of a definition list: the first cell is the term, the others are the text. A
// column's name is added where it adds to the text.
func definition(head, cells []string) string {
	var parts []string
	for i, cell := range cells[1:] {
		switch name := head[i+1]; {
		case cell == "":
		case len(cells) == 2, name == "meaning", name == "effect", name == "content":
			parts = append(parts, strings.TrimSuffix(cell, "."))
		default:
			parts = append(parts, name+": "+cell)
		}
	}
	return cells[0] + "\n: " + strings.Join(parts, ". ") + ".\n"
}
