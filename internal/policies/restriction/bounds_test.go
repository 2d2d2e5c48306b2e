package restriction_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// A tenant chooses the number of mounts and their paths. Neither makes a decision or a message large.
func TestViolationsAreBounded(t *testing.T) {
	const policies, most = 3, 100
	var files []restriction.File
	for i := range policies {
		files = append(files, file(fmt.Sprintf("p%d", i), "", fmt.Sprintf("{spec: {volumes: [{hostPath: {path: {blacklist: [/a, /p%d]}}}, {volumeType: {whitelist: [secret]}}]}}", i)))
	}
	c := container("web")
	var mounts []admission.Mount
	for i := range 10_000 {
		m := hostPath(fmt.Sprintf("/a/%d", i))
		m.Path = fmt.Sprintf("/%d/%s\n", i, strings.Repeat("x", 1<<10))
		mounts = append(mounts, m)
	}
	c.Mounts = set(mounts)
	c.Name = strings.Repeat("c", 1<<10)
	pod := allowed()
	d := load(t, files...).Judge(&pod, []admission.Container{c}, restriction.Options{From: restriction.Node})
	if d.Admitted || len(d.Violations) != policies*most {
		t.Fatalf("Judge = %v with %d violations; want a denial with %d for each of %d policies", d.Admitted, len(d.Violations), most, policies)
	}
	if text := d.Violations[0].String(); len(text) > 1000 || strings.Contains(text, "\n") {
		t.Errorf("a message of %d bytes: %q", len(text), text)
	}
}
