// Package critest_test runs critest, the conformance tests that the Kubernetes project has for runtimes, directly on a
// containerd and through pullgated, and compares the results.
package critest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
)

// skipped are the specs that need a pod network or the nginx of the image, neither of which the tests have. Each of
// them waits for a minute.
const skipped = `port mapping|should support network|support portforward \[|support HostPID`

// leastPassed is how many of the others pass at least without pullgated. Those that fail there need what the tests do
// not have, such as an image of the Internet with a fixed digest.
const leastPassed = 60

// Each spec has the same result directly and through pullgated.
// Shows: 001-39
func TestCritest(t *testing.T) {
	if os.Getenv("NODES") != "matrix" {
		t.Skip("a part of make matrix")
	}
	program := testkit.Value(release.Critest(t.Context()))(t)
	n := testkit.Value(node.New(t.Context(), node.Options{Mirrored: []string{"registry.k8s.io", "gcr.io"}}))(t)
	host.AtEnd(t, n.Close)
	pushImages(t, n)
	empty := emptied(t, n)
	gate := testkit.Value(n.Protect(t.Context(), n.Containerd.Endpoint()))(t)

	seed := rand.Int32()
	t.Logf("seed %d; to repeat one run: %s -ginkgo.skip=%q -ginkgo.seed=%d", seed, program, skipped, seed)
	// Each run begins without images: what the first one pulls past pullgated needs proof.
	both := func(more ...string) (direct, through map[string]result) {
		empty()
		direct = run(t, n, program, n.Containerd.Endpoint(), seed, more...)
		empty()
		return direct, run(t, n, program, gate.Endpoint(), seed, more...)
	}
	direct, through := both()
	passed := 0
	var differ []string
	for name, d := range direct {
		if d.state == "passed" {
			passed++
		}
		if through[name].state != d.state {
			differ = append(differ, name)
		}
	}
	t.Logf("%d specs passed directly, of %d that ran", passed, len(direct))
	if len(through) != len(direct) || passed < leastPassed {
		t.Errorf("%d specs ran directly, of which %d passed, and %d through pullgated; want the same, and %d passed",
			len(direct), passed, len(through), leastPassed)
	}
	// Specs have time limits, which a busy machine exceeds now and then, and runtimes lose the reason OOMKilled then: only
	// what differs each time is a difference.
	for range 3 {
		if len(differ) == 0 {
			return
		}
		var focus []string
		for _, name := range differ {
			t.Logf("once more: %s: directly: %s, through pullgated: %s", name, direct[name], through[name])
			focus = append(focus, "-ginkgo.focus", regexp.QuoteMeta(name))
		}
		direct, through = both(focus...)
		differ = slices.DeleteFunc(differ, func(name string) bool {
			return direct[name].state != "" && direct[name].state == through[name].state
		})
	}
	for _, name := range differ {
		t.Errorf("%s\n\tdirectly: %s\n\tthrough pullgated: %s", name, direct[name], through[name])
	}
}

// emptied returns a function that removes all pods, and all images that the runtime does not have yet.
func emptied(t *testing.T, n *node.Node) func() {
	t.Helper()
	k := testkit.Value(node.NewKubelet(t.Context(), n.Containerd.Endpoint()))(t)
	t.Cleanup(k.Close)
	own := testkit.Value(k.Images.ListImages(t.Context(), nil))(t)
	return func() {
		t.Helper()
		testkit.Must(t, k.RemoveAllPods(t.Context()))
		for _, i := range testkit.Value(k.Images.ListImages(t.Context(), nil))(t) {
			if !slices.ContainsFunc(own, func(o *runtimeapi.Image) bool { return o.GetId() == i.GetId() }) {
				testkit.Must(t, k.RemoveImage(t.Context(), i.GetId()))
			}
		}
	}
}

// pushImages makes the images that the specs use, under their names within the registries that the node mirrors.
func pushImages(t *testing.T, n *node.Node) {
	t.Helper()
	const tests, kubernetes = "k8s-staging-cri-tools/", "e2e-test-images/"
	// Specs look for the first word of the output, and for the name of nginx's process.
	web := func(name string, port int) []string {
		serve := fmt.Sprintf("echo %s; httpd -p %d -h /www; while :; do sleep 1; done", name, port)
		return []string{"/bin/sh", "-c", serve, name + ": master process"}
	}
	sleeps := []string{"/bin/sleep", "3600"}
	page := map[string]string{"www/index.html": "<title>Welcome to nginx!</title>\n"}
	works := map[string]string{"www/index.html": "<h1>It works!</h1>\n"}
	images := map[string]node.Image{
		kubernetes + "busybox:1.29-2":                         {Entrypoint: []string{}},
		kubernetes + "nginx:1.14-2":                           {Entrypoint: web("nginx", 80), Files: page},
		kubernetes + "httpd:2.4.39-4":                         {Entrypoint: web("httpd", 80), Files: works},
		tests + "hostnet-nginx-" + runtime.GOARCH + ":latest": {Entrypoint: web("nginx", 12003), Files: page},
		tests + "test-image-latest:latest":                    {Entrypoint: sleeps},
		tests + "test-image-tag:test":                         {Entrypoint: sleeps},
		tests + "test-image-tag:all":                          {Entrypoint: sleeps},
		tests + "test-image-user-uid:latest":                  {Entrypoint: sleeps, User: "1002"},
		tests + "test-image-user-username:latest":             {Entrypoint: sleeps, User: "www-data"},
		tests + "test-image-user-uid-group:latest":            {Entrypoint: sleeps, User: "1003:users"},
		tests + "test-image-user-username-group:latest":       {Entrypoint: sleeps, User: "www-data:100"},
		tests + "test-image-1:latest":                         {Entrypoint: sleeps},
		tests + "test-image-2:latest":                         {Entrypoint: sleeps},
		tests + "test-image-3:latest":                         {Entrypoint: sleeps},
	}
	for name, image := range images {
		image.Content, image.AllApplets = name, true
		testkit.Value(n.Public.Push(t.Context(), name, image))(t)
	}
	same := testkit.Value(node.Image{Content: "test-image-tags", Entrypoint: sleeps}.Build())(t)
	for tag := 1; tag <= 3; tag++ {
		testkit.Must(t, same.Push(t.Context(), fmt.Sprintf("%s/%stest-image-tags:%d", n.Public.Host(), tests, tag)))
	}
}

type result struct{ state, failure string }

func (r result) String() string { return strings.TrimSpace(r.state + " " + r.failure) }

// run runs the specs at an endpoint, and returns the results of those that were not skipped, by name.
func run(t *testing.T, n *node.Node, program, endpoint string, seed int32, more ...string) map[string]result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	report := filepath.Join(t.TempDir(), "report.json")
	began := time.Now()
	// It fails if a spec does; the report says which.
	args := []string{
		"-runtime-endpoint", endpoint, "-image-endpoint", endpoint, "-config", filepath.Join(n.Dir, "none.yaml"),
		"-ginkgo.skip", skipped,
		"-ginkgo.seed", fmt.Sprint(seed), "-ginkgo.json-report", report, "-ginkgo.no-color", "-ginkgo.timeout", "8m",
	}
	output, failed := host.Run(ctx, program, append(args, more...)...)
	t.Logf("%s: %v", endpoint, time.Since(began).Round(time.Second))
	data, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("critest left no report: %v\n%v\n%s", err, failed, output)
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeText, State     string
			Failure                 struct{ Message string }
		}
	}
	testkit.Must(t, json.Unmarshal(data, &suites))
	results := map[string]result{}
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			if spec.State != "skipped" && spec.State != "pending" && spec.LeafNodeText != "" {
				name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
				results[name] = result{spec.State, firstLines(spec.Failure.Message)}
			}
		}
	}
	return results
}

// firstLines shortens a message of a failure, which can have a hundred lines.
func firstLines(message string) string {
	return strings.Join(strings.SplitN(message, "\n", 5)[:min(4, strings.Count(message, "\n")+1)], "\n")
}
