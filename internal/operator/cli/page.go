package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/duration"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

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

// A Page is text that is made line by line, and that has passed through Safe. The zero Page is empty.
type Page struct {
	Colours bool // whether the Page has colours
	// Width is the number of columns of the terminal, or 0 if it is unknown. Prose is wrapped at this width, and at 90
	// columns at most.
	Width int

	Now           time.Time // the time from which ages are computed
	WholeIDs      bool      // prints whole IDs, not only their first 12 digits
	AbsoluteTimes bool      // prints times as dates, not as ages

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
	width, quoted := min(cmp.Or(p.Width, maxWidth), maxWidth), false
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

func shown(cell string) string { return cmp.Or(Safe(cell), "-") }

const shortID = 12

// ID returns an image ID or a credential ID.
func (p *Page) ID(id string) string {
	if p.WholeIDs {
		return id
	}
	digits := strings.TrimPrefix(id, "sha256:")
	return digits[:min(shortID, len(digits))]
}

func (p *Page) age(t *timestamppb.Timestamp) string {
	switch {
	case t == nil:
		return ""
	case p.AbsoluteTimes:
		return p.date(t)
	}
	return age(p.Now.Sub(t.AsTime()))
}

// ago returns a time for a sentence: "3d4h ago", "at 2026-01-02T15:04:05Z", "in 20m"; "never" if there is none.
func (p *Page) ago(t *timestamppb.Timestamp) string {
	switch {
	case t == nil:
		return "never"
	case p.AbsoluteTimes:
		return "at " + p.date(t)
	case t.AsTime().After(p.Now):
		return "in " + age(t.AsTime().Sub(p.Now))
	}
	return age(p.Now.Sub(t.AsTime())) + " ago"
}

func (p *Page) lasting(t *timestamppb.Timestamp) string {
	switch {
	case t == nil:
		return "since an unknown time"
	case p.AbsoluteTimes:
		return "since " + p.date(t)
	}
	return "for " + age(p.Now.Sub(t.AsTime()))
}

func (p *Page) date(t *timestamppb.Timestamp) string { return t.AsTime().UTC().Format(time.RFC3339) }

func podName(p *adminv1.PodRef) string {
	if p.GetName() == "" && p.GetUid() != "" {
		return "UID " + p.GetUid()
	}
	return coordinates(p)
}

func secretName(s *adminv1.SecretRef) string {
	if s.GetName() == "" && s.GetUid() == "" && s.GetNamespace() != "" {
		return "runtime for namespace " + s.GetNamespace()
	}
	if account := accountCoordinates(s); account != "" {
		return "service account " + account
	}
	return coordinates(s)
}

// ServiceAccountPrefix is before the name of a service account in a SecretRef.
const ServiceAccountPrefix = "serviceaccount/"

// Count returns a number with its noun.
func Count[N int | int64 | uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func age(d time.Duration) string { return duration.HumanDuration(max(0, d)) }

// ParseAge reads a positive duration with days and years: 30d, 1y, 3d4h, 90m.
func ParseAge(s string) (time.Duration, error) {
	age, err := model.ParseDuration(s)
	if err != nil {
		d, invalid := time.ParseDuration(s) // 1.5h
		age, err = model.Duration(d), invalid
	}
	if err != nil || age <= 0 {
		return 0, fmt.Errorf("%q is not an age; write 30d, 12h or 3d4h", s)
	}
	return time.Duration(age), nil
}

// Size returns a number of bytes in the largest unit that fits.
func Size(bytes int64) string {
	if bytes < 1024 {
		return fmt.Sprintf("%d B", bytes)
	}
	value, unit := float64(bytes)/1024, 0
	for ; value >= 1024 && unit < 3; unit++ {
		value /= 1024
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGT"[unit])
}
