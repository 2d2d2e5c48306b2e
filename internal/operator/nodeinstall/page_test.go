package nodeinstall_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/nodeinstall"
	"github.com/pullgate/pullgate/internal/testkit"
)

// The table of docs/node-install.md has the stages, in their order.
func TestPageHasTheStages(t *testing.T) {
	page := string(testkit.Value(os.ReadFile("../../../docs/node-install.md"))(t))
	table := regexp.MustCompile(`(?s)\n\| stage \|.*?\n\n`).FindString(page)
	var got, want []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(table, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			got = append(got, name[1])
		}
	}
	for _, s := range nodeinstall.Stages() {
		want = append(want, s.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the page has the stages %v; want %v", got, want)
	}
}
