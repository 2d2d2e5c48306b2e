package cli

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxWidth is the maximum width of prose; longer lines are hard to read.
const maxWidth = 90

// A Colour is the colour of a line.
type Colour string

// The colours. The zero value is the default colour of the terminal.
const (
	Plain Colour = ""
	Good  Colour = "\x1b[32m"
	Heed  Colour = "\x1b[33m"
	Bad   Colour = "\x1b[31m"
	Bold  Colour = "\x1b[1m"

	endOfColour = "\x1b[0m"
)

// A Page is text that is made line by line. Every text in it has passed through Safe. The zero Page is empty and has no
// colours.
type Page struct {
	// Colours reports whether the Page has colours.
	Colours bool
	// Width is the number of columns of the terminal, or 0 if it is unknown. Prose is wrapped at this width, and at 90
	// columns at most.
	Width int

	buf bytes.Buffer
}

// Line adds a line.
func (p *Page) Line(format string, args ...any) { p.Paint(Plain, format, args...) }

// Paint adds a line in a colour.
func (p *Page) Paint(c Colour, format string, args ...any) {
	line := Safe(strings.TrimRight(fmt.Sprintf(format, args...), " "))
	if !p.Colours || c == Plain || line == "" {
		p.buf.WriteString(line + "\n")
		return
	}
	p.buf.WriteString(string(c) + line + endOfColour + "\n")
}

// Gap adds an empty line between the existing and the next lines.
func (p *Page) Gap() {
	if p.buf.Len() > 0 {
		p.buf.WriteByte('\n')
	}
}

// Text adds a text of several lines, each with the indent.
func (p *Page) Text(indent, text string) {
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		p.Line("%s%s", indent, line)
	}
}

// Prose adds a paragraph, wrapped between words. The first line begins with first, the others with the same number of
// blanks. Text in backquotes is not wrapped, so that a command in it can be copied.
func (p *Page) Prose(first, format string, args ...any) { p.PaintProse(Plain, first, format, args...) }

// PaintProse adds a paragraph in a colour.
func (p *Page) PaintProse(c Colour, first, format string, args ...any) {
	line := first
	width := maxWidth
	if p.Width > 0 {
		width = min(p.Width, maxWidth)
	}
	quoted := false
	for i, word := range strings.Split(Safe(fmt.Sprintf(format, args...)), " ") {
		switch {
		case i == 0:
			line += word
		case !quoted && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			p.Paint(c, "%s", line)
			line = strings.Repeat(" ", utf8.RuneCountInString(first)) + word
		default:
			line += " " + word
		}
		quoted = quoted != (strings.Count(word, "`")%2 == 1)
	}
	p.Paint(c, "%s", line)
}

// Table adds a table; each column is as wide as its widest cell. An empty cell is printed as a dash.
func (p *Page) Table(head []string, rows [][]string) {
	if len(rows) == 0 {
		p.Line("No entries.")
		return
	}
	widths := make([]int, len(head))
	for _, cells := range append([][]string{head}, rows...) {
		for i, cell := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(shown(cell)))
		}
	}
	p.Row(Bold, head, widths)
	for _, cells := range rows {
		p.Row(Plain, cells, widths)
	}
}

// tableOf adds a table with a row for each entry.
func tableOf[E any](p *Page, head []string, entries []E, cells func(E) []string) {
	rows := make([][]string, 0, len(entries))
	for _, e := range entries {
		rows = append(rows, cells(e))
	}
	p.Table(head, rows)
}

// Row adds a line of a table with these column widths, for tables without a known end.
func (p *Page) Row(c Colour, cells []string, widths []int) {
	var line strings.Builder
	for i, cell := range cells {
		_, _ = fmt.Fprintf(&line, "%-*s  ", widths[i], shown(cell))
	}
	p.Paint(c, "%s", line.String())
}

// Take returns the content of the page, and empties it.
func (p *Page) Take() []byte {
	b := bytes.Clone(p.buf.Bytes())
	p.buf.Reset()
	return b
}

func shown(cell string) string {
	if cell == "" {
		return "-"
	}
	return Safe(cell)
}
