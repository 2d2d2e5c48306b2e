// Package fleet_test installs pullgate by Rollouts on nodes with systemd, containerd and kubelet: the pods of the Helm
// chart run on some of them, and those that pullgate-dispatcher makes on all.
package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/pullgate/pullgate/internal/testkit"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/fleet"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

const (
	namespace = "pullgate" // of the chart
	apps      = "apps"     // of the pods

	groupLabel = "test.pullgate.dev/group"
)

const configuration = "apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\n"

// A build is a version of the programs, and the image with them.
type build struct{ version, image string }

type site struct {
	*testing.T
	fleet     *fleet.Fleet
	nodes     []*fleet.Node
	dir       string
	older     build
	newer     build  // the same, which can be made to fail; known after waitForNewer
	signer    string // the file of the key of both
	publicKey string // of the signer
	rollouts  dynamic.ResourceInterface
	// nodeReports are what nodes report in shadow mode.
	nodeReports dynamic.ResourceInterface

	waitForNewer func()
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{T: t, dir: t.TempDir()}
	var building errgroup.Group // meanwhile, since it takes longest
	programs := ""
	building.Go(func() (err error) {
		programs, err = faulty(s.dir)
		return err
	})
	s.waitForNewer = func() {
		s.must(building.Wait())
		s.newer = s.build(programs)
	}
	s.signer = s.newKey("signer")
	s.publicKey = s.sign("public", s.signer)
	s.fleet = testkit.Value(fleet.Start(t.Context()))(t)
	host.AtEnd(t, s.fleet.Close)
	objects := testkit.Value(dynamic.NewForConfig(s.fleet.Config(cluster.Administrator)))(t)
	resource := schema.GroupVersionResource{Group: "fleet.pullgate.dev", Version: "v1alpha1", Resource: "rollouts"}
	s.rollouts = objects.Resource(resource)
	resource.Resource = "nodereports"
	s.nodeReports = objects.Resource(resource)
	s.older = s.build(filepath.Dir(testkit.Value(node.Program("pullgated"))(t)))
	s.must(os.WriteFile(s.kubeconfig(), s.fleet.Kubeconfig("token: "+cluster.Administrator), 0o600))
	s.namespaces(namespace, apps)
	return s
}

// kubeconfig is the file with which programs are the administrator.
func (s *site) kubeconfig() string { return filepath.Join(s.dir, "admin") }

func (s *site) namespaces(names ...string) {
	s.Helper()
	for _, name := range names {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		testkit.Value(s.fleet.Client.CoreV1().Namespaces().Create(s.Context(), ns, metav1.CreateOptions{}))(s)
	}
}

// sign runs the program that signs releases.
func (s *site) sign(args ...string) string {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), "go", append([]string{"run", "./sign"}, args...)...)
	cmd.Dir = testkit.Value(host.Upward(".ci/checks"))(s)
	out := testkit.Value(cmd.Output())(s)
	return string(out)
}

func (s *site) newKey(name string) (file string) {
	s.Helper()
	file = filepath.Join(s.dir, name)
	s.sign("test-key", file)
	return file
}

// faulty builds programs of another version, whose pullgated has the faults that testdata/faulty.go.txt describes. They
// are not in the source of what is released.
func faulty(dir string) (programs string, err error) {
	defer host.Catch(&err)
	root := filepath.Dir(host.Must(host.Upward("Makefile")))
	gate := filepath.Join(root, "internal/gate/gate.go")
	source := host.Must(os.ReadFile(gate))
	const handlers = "func (g *Gate) Handlers()"
	if strings.Count(string(source), handlers) != 1 {
		return "", fmt.Errorf("%s has not one %q", gate, handlers)
	}
	changed := filepath.Join(dir, "gate.go")
	renamed := strings.Replace(string(source), handlers, "func (g *Gate) rightHandlers()", 1)
	host.Check(os.WriteFile(changed, []byte(renamed), 0o600))
	overlay := map[string]map[string]string{"Replace": {
		gate: changed, filepath.Join(filepath.Dir(gate), "faulty.go"): host.Must(filepath.Abs("testdata/faulty.go.txt")),
	}}
	host.Check(os.WriteFile(filepath.Join(dir, "overlay.json"), host.Must(json.Marshal(overlay)), 0o600))
	programs = filepath.Join(dir, "faulty")
	cmd := exec.Command("make", "build", "VERSION=v999.0.0", "BIN="+programs)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOFLAGS=-overlay="+filepath.Join(dir, "overlay.json"), "MAKEFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build with faults: %w\n%s", err, out)
	}
	return programs, nil
}

// build pushes an image of programs in a folder.
func (s *site) build(programs string) build {
	s.Helper()
	printed := testkit.Value(host.Run(s.Context(), filepath.Join(programs, "pullgatectl"), "--version"))(s)
	version := strings.Fields(printed)[1]
	to := filepath.Join(s.dir, "image-"+version)
	cmd := exec.CommandContext(s.Context(), "go", "run", "./image", to, version, programs)
	cmd.Dir = testkit.Value(host.Upward(".ci/checks"))(s)
	cmd.Env = append(os.Environ(), "COMMIT=0123abc", "SOURCE_DATE_EPOCH=1700000000",
		"SIGNING_KEY="+s.signer)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("image: %v\n%s", err, out)
	}
	b := build{version, s.fleet.Registry.Host() + "/pullgate:" + version}
	index := testkit.Value(layout.ImageIndexFromPath(to))(s)
	inner := testkit.Value(index.IndexManifest())(s).Manifests[0].Digest
	image := testkit.Value(index.ImageIndex(inner))(s)
	testkit.Must(s, remote.WriteIndex(testkit.Value(name.ParseReference(b.image, name.Insecure))(s), image))
	return b
}

func (s *site) step(name string, run func()) {
	s.Helper()
	host.Step(&s.T, name, run)
}

// labelled returns a selector of the nodes with a value of the label that the tests give them.
func labelled(value string) map[string]any {
	return map[string]any{"matchLabels": map[string]any{groupLabel: value}}
}

// label gives nodes a value of the label, "" for none.
func (s *site) label(value string, nodes ...*fleet.Node) {
	s.Helper()
	labels := map[string]any{"labels": map[string]any{groupLabel: value}}
	text := testkit.Value(json.Marshal(map[string]any{"metadata": labels}))(s)
	for _, n := range nodes {
		testkit.Value(s.fleet.Client.CoreV1().Nodes().Patch(s.Context(), n.Name, types.MergePatchType, text,
			metav1.PatchOptions{}))(s)
	}
}

func (s *site) must(errs ...error) {
	s.Helper()
	testkit.Must(s, errs...)
}

// A status is what the tests read of a Rollout's.
type status struct {
	Phase, Message string
	Wave           int
	Nodes          struct{ Selected, Installed, Updating, Failed, Pending, Leaving, Unknown, SkippedNotReady int }
	Skipped        []string
	Conditions     []metav1.Condition
	Failures       []struct{ Node, Stage, Message, State, Next string }
}

// spec returns a Rollout of a version for all nodes with a label. more replaces fields.
func (s *site) spec(b build, more map[string]any) map[string]any {
	spec := map[string]any{
		"version": b.version, "image": b.image, "mode": "Enforce", "nodeSelector": map[string]any{},
		"configuration": configuration, "publicKey": s.publicKey,
		"waves": []any{int64(1), int64(5)}, "soak": "1s", "confirmWithin": "90s", "probation": "5s",
	}
	maps.Copy(spec, more)
	return spec
}

func (s *site) create(name string, spec map[string]any) {
	s.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetAPIVersion("fleet.pullgate.dev/v1alpha1")
	o.SetKind("Rollout")
	o.SetName(name)
	testkit.Value(s.rollouts.Create(s.Context(), o, metav1.CreateOptions{}))(s)
}

// patch changes fields of a Rollout's spec.
func (s *site) patch(name string, fields map[string]any) {
	s.Helper()
	text := testkit.Value(json.Marshal(map[string]any{"spec": fields}))(s)
	testkit.Value(s.rollouts.Patch(s.Context(), name, types.MergePatchType, text, metav1.PatchOptions{}))(s)
}

func (s *site) status(name string) (st status) {
	s.Helper()
	o := testkit.Value(s.rollouts.Get(s.Context(), name, metav1.GetOptions{}))(s)
	is, _, _ := unstructured.NestedMap(o.Object, "status")
	generation, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	s.must(json.Unmarshal(testkit.Value(json.Marshal(is))(s), &st)) // names are compared without case
	if generation != o.GetGeneration() {
		st.Phase = "of an older generation: " + st.Phase
	}
	return st
}

// await waits until a Rollout has a phase.
func (s *site) await(name, phase string, limit time.Duration, nodes ...*fleet.Node) (st status) {
	s.Helper()
	if !host.Within(limit, func() bool { st = s.status(name); return st.Phase == phase }) {
		s.explain(nodes...)
		s.Fatalf("after %v rollout %s is %+v; want %s", limit, name, st, phase)
	}
	return st
}

// delete deletes a Rollout, and waits until it has taken pullgate off its nodes.
func (s *site) delete(name string, nodes ...*fleet.Node) {
	s.Helper()
	s.must(s.rollouts.Delete(s.Context(), name, metav1.DeleteOptions{}))
	if !host.Within(2*time.Minute, func() bool {
		_, err := s.rollouts.Get(s.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}) {
		s.explain(nodes...)
		s.Fatalf("rollout %s is not gone: %+v", name, s.status(name))
	}
}

// with returns the site for a subtest.
func (s *site) with(t *testing.T) *site {
	t.Helper()
	o := *s
	o.T = t
	return &o
}

// explain logs what the pods of the chart and the nodes say.
func (s *site) explain(nodes ...*fleet.Node) {
	s.Helper()
	ctx := context.WithoutCancel(s.Context())
	all := s.logged()
	for _, e := range all[max(0, len(all)-30):] {
		s.Log(strings.TrimSpace(e.text))
	}
	pods := testkit.Value(s.fleet.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{}))(s)
	for _, p := range pods.Items {
		text, _ := json.Marshal(p.Status)
		s.Logf("pod %s: %s", p.Name, text)
	}
	for _, n := range nodes {
		out, _ := n.Run(ctx, "journalctl", "--no-pager", "--lines=30", "--unit=pullgate*")
		s.Logf("%s:\n%s", n.Name, out)
	}
}

// condition returns the condition of a node that pullgated writes.
func (s *site) condition(n *fleet.Node) (c corev1.NodeCondition) {
	s.Helper()
	all := testkit.Value(n.Object(s.Context()))(s).Status.Conditions
	if i := slices.IndexFunc(all, func(c corev1.NodeCondition) bool { return c.Type == "PullgateEnforcing" }); i >= 0 {
		c = all[i]
	}
	return c
}
