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
	"github.com/pullgate/pullgate/internal/operator/cli"
)

func docsCommand(c *cli.Console) *cobra.Command {
	cmd := cli.Group("docs", "Write the manual of pullgatectl", "", docsManCommand(), docsMarkdownCommand(c))
	cmd.Hidden = true
	return cmd
}

func docsManCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR [DOCS]",
		Short: "Write a manual page for each command into a directory, and those of pullgated from the folder docs",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeManual(documented(cmd), args[0], append(args, "")[1])
		},
	}
}

func docsMarkdownCommand(c *cli.Console) *cobra.Command {
	return &cobra.Command{
		Use:   "markdown",
		Short: "Print the whole manual as Markdown",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var b bytes.Buffer
			if err := markdown(documented(cmd), &b); err != nil {
				return err
			}
			return c.Emit(b.Bytes())
		},
	}
}

func markdown(cmd *cobra.Command, b *bytes.Buffer) error {
	if err := doc.GenMarkdownCustom(cmd, b, func(file string) string {
		return "#" + filepath.Base(file[:len(file)-len(filepath.Ext(file))])
	}); err != nil {
		return err
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			if err := markdown(sub, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// documented returns the command tree for the manual: without completion, which --help describes for each shell, and
// without a line with the date of generation.
func documented(cmd *cobra.Command) *cobra.Command {
	root := cmd.Root()
	root.DisableAutoGenTag = true
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			root.RemoveCommand(c)
		}
	}
	return root
}

type page struct {
	file                          string // in docs/
	name, section, short, seeAlso string
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

// sourceDate returns the time of SOURCE_DATE_EPOCH, or always the same one: two builds of a commit are equal.
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
	fmt.Fprintf(&b, "%% %q %q %q %q %q\n", strings.ToUpper(p.name), p.section, date.Format("Jan 2006"), source(),
		"pullgate")
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

// definition converts a row to an entry of a definition list; a column's name is added where it adds to the text.
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
