package main

import (
	"bytes"
	"fmt"
	"strings"
)

// pods are what became of the pods of one run.
type pods struct{ entitled, borrowed, refused int }

func (p pods) all() int { return p.entitled + p.borrowed + p.refused }

// A bar is the mean time of what one outcome counted.
type bar struct {
	label   string
	count   int
	seconds float64
}

type chart struct {
	without, with pods
	times         []bar
}

// head has the styles. Both colour schemes are served, on the background of the page.
const head = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 268" width="760" height="268" role="img" aria-labelledby="title desc">
<title id="title">What became of pods that name a private image, without pullgate and with it</title>
<desc id="desc">%s</desc>
<style>
text { font: 13px system-ui, sans-serif; fill: #424a53 }
.t { font-weight: 600 } text.in { fill: #fff } .end { text-anchor: end }
.entitled, .time { fill: #2563c9 } .borrowed { fill: #c62a34 } .refused { fill: #6e7781 }
@media (prefers-color-scheme: dark) { text { fill: #b1bac4 } }
</style>
`

const (
	left  = 150 // where bars begin
	width = 560 // of the longest bar of pods
	high  = 26
)

// draw writes the chart as SVG.
func (c chart) draw(to *bytes.Buffer) {
	fmt.Fprintf(to, head, c.words())
	fmt.Fprintf(to, `<text class="t" x="%d" y="16">What became of %d pods that name a private image of team A, which is on the node</text>`+"\n", left, c.with.all())
	c.row(to, 28, "without pullgate", c.without)
	c.row(to, 62, "with pullgate", c.with)
	legend := []struct{ class, text string }{
		{"entitled", "runs, its credential can pull the image"}, {"borrowed", "runs without one"}, {"refused", "refused"},
	}
	x := left
	for _, l := range legend {
		fmt.Fprintf(to, `<rect class="%s" x="%d" y="101" width="10" height="10"/><text x="%d" y="111">%s</text>`+"\n", l.class, x, x+15, l.text)
		x += 40 + len(l.text)*13/2
	}
	fmt.Fprintf(to, `<text class="t" x="%d" y="150">How long pullgate took over it, mean, by its own metrics</text>`+"\n", left)
	longest := 0.0
	for _, b := range c.times {
		longest = max(longest, b.seconds)
	}
	for i, b := range c.times {
		y := 162 + i*34
		w := max(b.seconds/longest*(width-90), 2)
		fmt.Fprintf(to, `<text class="end" x="%d" y="%d">%s</text><rect class="time" x="%d" y="%d" width="%.1f" height="%d" rx="2"/><text x="%.1f" y="%d">%.2g ms (%d)</text>`+"\n",
			left-10, y+18, b.label, left, y, w, high, left+w+8, y+18, b.seconds*1000, b.count)
	}
	to.WriteString("</svg>\n")
}

func (c chart) row(to *bytes.Buffer, y int, label string, p pods) {
	fmt.Fprintf(to, `<text class="end" x="%d" y="%d">%s</text>`+"\n", left-10, y+18, label)
	x := float64(left)
	for _, s := range []struct {
		class string
		n     int
	}{{"entitled", p.entitled}, {"borrowed", p.borrowed}, {"refused", p.refused}} {
		if s.n == 0 {
			continue
		}
		w := float64(s.n) / float64(p.all()) * width
		fmt.Fprintf(to, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d" rx="2"/><text class="in" x="%.1f" y="%d">%d</text>`+"\n", s.class, x, y, w-2, high, x+8, y+18, s.n)
		x += w
	}
}

// words say it to who does not see it.
func (c chart) words() string {
	var s strings.Builder
	fmt.Fprintf(&s, "Without pullgate %d of %d pods run, %d of them without a credential. With it %d run, each with a credential, and %d are refused.",
		c.without.entitled+c.without.borrowed, c.without.all(), c.without.borrowed, c.with.entitled, c.with.refused)
	for _, b := range c.times {
		fmt.Fprintf(&s, " %s: %.2g ms, mean of %d.", b.label, b.seconds*1000, b.count)
	}
	return s.String()
}
