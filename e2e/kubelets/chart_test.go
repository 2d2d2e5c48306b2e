package kubelets_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// chartFile is the chart that the documents show. With WRITE_CHART=1 the scenario of many pods draws it.
const chartFile = "../../docs/monitoring/starts.svg"

// A chart shows crowds: what became of their pods, and when those that have a credential ran.
type chart []crowd

const (
	chartLeft  = 170 // where bars begin
	chartWidth = 440 // of the longest bar
	barHeight  = 22
	rowHeight  = 30
)

// chartHead has the styles, for a light and a dark page.
const chartHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 282" width="760" height="282" role="img" aria-labelledby="title desc">
<title id="title">60 pods that start at once, without pullgate and with it</title>
<desc id="desc">%s</desc>
<style>
text { font: 13px system-ui, sans-serif; fill: #424a53 }
.t { font-weight: 600 } text.in { fill: #fff } .end { text-anchor: end }
.proved, .p50 { fill: #2563c9 } .p99 { fill: #9db8e6 } .borrowed { fill: #c62a34 } .refused { fill: #6e7781 }
@media (prefers-color-scheme: dark) { text { fill: #b1bac4 } .p99 { fill: #34588f } }
</style>
`

// draw returns the chart as SVG.
func (c chart) draw() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, chartHead, c.words())
	legend := func(x, y int, class, label string) {
		fmt.Fprintf(&b, `<rect class="%s" x="%d" y="%d" width="10" height="10"/><text x="%d" y="%d">%s</text>`+"\n", class, x, y-9, x+15, y, label)
	}
	bar := func(class string, x, y, w float64, label string) {
		fmt.Fprintf(&b, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%d" rx="2"/><text class="in" x="%.1f" y="%.1f">%s</text>`+"\n", class, x, y, w, barHeight, x+8, y+16, label)
	}
	fmt.Fprintf(&b, `<text class="t" x="%d" y="16">60 pods at once on five images of a tenant that are on the node</text>`+"\n", chartLeft)
	longest := slices.MaxFunc(c, func(a, b crowd) int { return int(a.started - b.started) }).quantile(99)
	for i, one := range c {
		y := float64(26 + i*rowHeight)
		fmt.Fprintf(&b, `<text class="end" x="%d" y="%.0f">%s</text>`+"\n", chartLeft-10, y+16, one.how)
		proved := float64(len(one.starts)) / 60 * chartWidth
		bar("proved", chartLeft, y, proved-2, fmt.Sprint(len(one.starts)))
		bar(one.others(), chartLeft+proved, y, chartWidth-proved, fmt.Sprint(60-len(one.starts)))
	}
	legend(chartLeft, 132, "proved", "run with a credential")
	legend(chartLeft+170, 132, "borrowed", "run without one")
	legend(chartLeft+310, 132, "refused", "refused")
	fmt.Fprintf(&b, `<text class="t" x="%d" y="164">When the pods with a credential run</text>`+"\n", chartLeft)
	for i, one := range c {
		y := float64(174 + i*rowHeight)
		w := func(percent int) float64 {
			return max(one.quantile(percent).Seconds()/longest.Seconds()*chartWidth, 2)
		}
		fmt.Fprintf(&b, `<text class="end" x="%d" y="%.0f">%s</text>`+"\n", chartLeft-10, y+16, one.how)
		bar("p99", chartLeft, y, w(99), "")
		bar("p50", chartLeft, y, w(50), "")
		fmt.Fprintf(&b, `<text x="%.1f" y="%.0f">%.1f s, %.1f s</text>`+"\n", chartLeft+w(99)+8, y+16, one.quantile(50).Seconds(), one.quantile(99).Seconds())
	}
	legend(chartLeft, 276, "p50", "half of them (p50)")
	legend(chartLeft+170, 276, "p99", "all but 1 % (p99)")
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// words describe the chart for readers who do not see it.
func (c chart) words() string {
	var s strings.Builder
	for _, one := range c {
		fmt.Fprintf(&s, "%s: %d pods run with a credential, half of them after %.1f s and 99 %% after %.1f s; %d without one %s. ",
			one.how, len(one.starts), one.quantile(50).Seconds(), one.quantile(99).Seconds(), 60-len(one.starts), map[bool]string{false: "run as well", true: "are refused"}[one.protected])
	}
	return strings.TrimSpace(s.String())
}

// others returns the class of the pods without a credential.
func (c crowd) others() string {
	if c.protected {
		return "refused"
	}
	return "borrowed"
}

// write draws the crowds of a node into chartFile if that is wanted.
func (c chart) write() error {
	if os.Getenv("WRITE_CHART") == "" {
		return nil
	}
	return os.WriteFile(chartFile, c.draw(), 0o644)
}

func TestChartDrawsEachCrowd(t *testing.T) {
	starts := func(n int, pace time.Duration) (all []time.Duration) {
		for i := range n {
			all = append(all, time.Duration(i+1)*pace)
		}
		return all
	}
	svg := chart{
		{how: "one", starts: starts(40, time.Second)}, {how: "two", starts: starts(40, time.Second/2), protected: true},
	}.draw()
	wellFormed(t, svg)
	if got := (crowd{}).quantile(50); got != 0 {
		t.Errorf("half of no pods ran after %v; want 0", got)
	}
	if n := strings.Count(string(svg), `<rect class="borrowed"`); n != 2 { // a bar and its legend
		t.Errorf("%d marks for pods that run without a credential; want the bar of the crowd without pullgate and the legend", n)
	}
	for _, want := range []string{
		"prefers-color-scheme: dark", "20.0 s, 40.0 s", "10.0 s, 20.0 s",
		"one: 40 pods run with a credential, half of them after 20.0 s and 99 % after 40.0 s; 20 without one run as well.",
		"two: 40 pods run with a credential, half of them after 10.0 s and 99 % after 20.0 s; 20 without one are refused.",
	} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("the chart lacks %q:\n%s", want, svg)
		}
	}
}

// The committed chart is one that the scenario drew, with a refusal for every pod that pullgate must refuse.
func TestCommittedChart(t *testing.T) {
	svg, err := os.ReadFile(chartFile)
	if err != nil {
		t.Fatal(err)
	}
	wellFormed(t, svg)
	for _, how := range []string{unprotected, standalone, withSource} {
		if !strings.Contains(string(svg), how+": 40 pods run with a credential") {
			t.Errorf("the chart does not show the pods of %q", how)
		}
	}
	if n := strings.Count(string(svg), "20 without one are refused"); n != 2 {
		t.Errorf("pods without a credential are refused in %d rows; want 2", n)
	}
}

func wellFormed(t *testing.T, svg []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
