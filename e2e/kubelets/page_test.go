package kubelets_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// reference is the kubelet whose table is complete. The others have the rows that differ from it.
const reference = "1.34"

const tableTitle = "| policy of pullgated | who comes | IfNotPresent | Always | Never |\n| --- | --- | --- | --- | --- |\n"

// tablesFor names the tables of the page that apply, the last one being the one that is written. A row of a later one
// replaces the row of the same case of an earlier one.
func tablesFor(release string, sourced bool) []string {
	tables := []string{"every kubelet"}
	if release != reference {
		tables = append(tables, "kubelet "+release)
	}
	if sourced {
		tables = append(tables, "with the pod source")
	}
	return tables
}

// cutTable returns what precedes the rows of a table of the page, the rows, and what follows.
func cutTable(page, name string) (before, rows, after string, ok bool) {
	before, rest, ok := strings.Cut(page, "<!-- "+name+" -->\n"+tableTitle)
	rows, after, ok2 := strings.Cut(rest, "<!-- end -->")
	return before, rows, after, ok && ok2
}

// caseOf is what a row is about: policy and kind of pod.
func caseOf(row string) string {
	cells := strings.Split(row, " | ")
	return strings.Join(cells[:min(2, len(cells))], " | ")
}

// rowsOf returns the rows of some tables by their case.
func rowsOf(page string, tables []string) map[string]string {
	all := map[string]string{}
	for _, name := range tables {
		_, rows, _, _ := cutTable(page, name)
		for row := range strings.Lines(rows) {
			row = strings.TrimSuffix(row, "\n")
			all[caseOf(row)] = row
		}
	}
	return all
}

// rowsFor returns the rows of the page for a kubelet, by case.
func rowsFor(page, release string, sourced bool) map[string]string {
	return rowsOf(page, tablesFor(release, sourced))
}

// writeRows returns the page with a table for the rows of a kubelet: all of them for the reference, else those that
// differ from the other tables.
func writeRows(page, release string, sourced bool, rows []string) (string, error) {
	tables := tablesFor(release, sourced)
	own := tables[len(tables)-1]
	earlier := rowsOf(page, tables[:len(tables)-1])
	differing := slices.DeleteFunc(slices.Clone(rows), func(row string) bool { return earlier[caseOf(row)] == row })
	before, _, after, ok := cutTable(page, own)
	if !ok {
		if len(differing) == 0 {
			return page, nil
		}
		return "", fmt.Errorf("no table <!-- %s --> in %s; add one", own, casesFile)
	}
	var b strings.Builder
	b.WriteString(before + "<!-- " + own + " -->\n" + tableTitle)
	for _, row := range differing {
		b.WriteString(row + "\n")
	}
	return b.String() + "<!-- end -->" + after, nil
}

// Rows are read as they were written, and writing the rows of the page changes nothing.
func TestCompatibilityPage(t *testing.T) {
	text, err := os.ReadFile(casesFile)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, release := range []string{reference, "1.30", "1.36"} {
		for _, sourced := range []bool{false, true} {
			rowOf := rowsFor(page, release, sourced)
			if len(rowOf) != 30 {
				t.Errorf("kubelet %s, pod source %v: %d cases; want 30", release, sourced, len(rowOf))
			}
			var rows []string
			_, complete, _, _ := cutTable(page, "every kubelet")
			for row := range strings.Lines(complete) {
				rows = append(rows, rowOf[caseOf(strings.TrimSuffix(row, "\n"))])
			}
			if again, err := writeRows(page, release, sourced, rows); err != nil || again != page {
				t.Errorf("kubelet %s, pod source %v: the page would change, %v", release, sourced, err)
			}
			rows[3] = strings.Replace(rows[3], "| ", "| changed", 1) + " differs |"
			changed, err := writeRows(page, release, sourced, rows)
			if err != nil || rowsFor(changed, release, sourced)[caseOf(rows[3])] != rows[3] {
				t.Errorf("kubelet %s, pod source %v: a row that is written is not read again, %v", release, sourced, err)
			}
		}
	}
}
