package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestDrawWritesWhatWasCounted(t *testing.T) {
	c := chart{
		without: pods{entitled: 6, borrowed: 6}, with: pods{entitled: 6, refused: 6},
		times: []bar{{"hit: proved before", 5, 0.0004}, {"miss, denied", 3, 0.02}},
	}
	var svg bytes.Buffer
	c.draw(&svg)
	wellFormed(t, svg.Bytes())
	for _, want := range []string{"12 pods", "0.4 ms (5)", "20 ms (3)", "6 of them without a credential", "prefers-color-scheme: dark"} {
		if !strings.Contains(svg.String(), want) {
			t.Errorf("the chart lacks %q:\n%s", want, &svg)
		}
	}
	if n := strings.Count(svg.String(), `<rect class="borrowed"`); n != 2 { // a bar and its legend
		t.Errorf("%d marks for borrowed; want the bar of the run without pullgate and the legend", n)
	}
}

// The chart that the README shows was drawn by this program, and shows what the README says.
func TestCommittedChart(t *testing.T) {
	svg, err := os.ReadFile("../../docs/monitoring/recheck.svg")
	if err != nil {
		t.Fatal(err)
	}
	wellFormed(t, svg)
	m := regexp.MustCompile(`Without pullgate (\d+) of (\d+) pods run, (\d+) of them without a credential. With it (\d+) run, each with a credential, and (\d+) are refused.` +
		` hit: proved before: ([0-9.]+) ms, mean of (\d+). miss, verified: ([0-9.]+) ms, mean of (\d+). miss, denied: ([0-9.]+) ms, mean of (\d+).`).FindStringSubmatch(string(svg))
	if m == nil {
		t.Fatal("the chart does not say in words what it shows")
	}
	number := func(i int) float64 {
		v, err := strconv.ParseFloat(m[i], 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if number(1) != number(2) || number(3) != 2*rounds || number(4) != 2*rounds || number(5) != 2*rounds {
		t.Errorf("counts %v; want all to run without pullgate, and half of them refused with it", m[1:6])
	}
	if number(6) >= number(8) || number(6) >= number(10) {
		t.Errorf("a hit took %s ms, misses %s and %s; want a hit to be faster", m[6], m[8], m[10])
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
