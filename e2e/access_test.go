package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// accessFiles are the files of kind ImageAccess of a pullgated.
type accessFiles struct {
	*suite
	folder string
}

// write writes a file, or removes it without a spec, and waits until there are so many.
func (f *accessFiles) write(number int, name, spec string) {
	f.Helper()
	path := filepath.Join(f.folder, name+".yaml")
	if spec == "" {
		f.must(os.Remove(path))
	} else {
		f.must(os.WriteFile(path, []byte("apiVersion: policy.pullgate.dev/v1alpha1\nkind: ImageAccess\nmetadata: {name: "+
			name+"}\nspec: {"+spec+"}\n"), 0o644))
	}
	if f.gate != nil && !host.Within(10*time.Second, func() bool {
		n, err := f.gate.Metric("pullgate_admission_policies", "kind", "ImageAccess")
		return err == nil && n == float64(number)
	}) {
		f.Fatalf("%s is not in force after 10 s", name)
	}
}

// A real containerd takes a lent credential to the registry of the image. Each right ends with its file.
func TestImageAccess(t *testing.T) {
	onEach(t, func(t runtimeTest) {
		s := bare(t)
		files := accessFiles{s, t.TempDir()}
		lent, shared := s.private("access/lent:1", node.Image{}), s.private("access/shared:1", node.Image{})
		fenced := s.public("access/fenced:1", node.Image{})
		credential := filepath.Join(t.TempDir(), "lend.json")
		s.must(os.WriteFile(credential, fmt.Appendf(nil, `{"auths":{"%s/access":{"username":%q,"password":%q}}}`,
			s.node.Private.Host(), node.Alice().Username, node.Alice().Password), 0o600))
		files.write(1, "lend", fmt.Sprintf("images: [%s/access/lent], from: [{namespaces: [team-b]}], grant: Lend, "+
			"credentials: {dockerConfigFile: %s}", s.node.Private.Host(), credential))
		s.protect(s.node.Containerd.Endpoint(), "admission: {policies: "+files.folder+"}",
			"imagePullCredentialsVerificationPolicy: AlwaysVerify")

		s.run(pod("team-c", lent, node.IfNotPresent), lent, node.PullFailed, -1)
		b := pod("team-b", lent, node.IfNotPresent)
		s.keep(b, lent, node.Running, -1)
		s.run(pod("team-b", lent, node.Never), lent, node.Running, 0)
		s.run(pod("team-b", lent, node.Always), lent, node.Running, -1)
		s.run(pod("team-c", lent, node.Never), lent, node.NeverPulled, 0)
		s.run(pod("team-c", lent, node.IfNotPresent), lent, node.PullFailed, -1)
		s.run(pod("team-b", shared, node.IfNotPresent), shared, node.PullFailed, -1) // of another repository
		s.must(s.node.Private.Down())
		s.run(pod("team-b", lent, node.IfNotPresent), lent, node.Running, 0)
		s.must(s.node.Private.Up())

		files.write(2, "share", fmt.Sprintf("images: ['%s/access/sh*'], from: [{namespaces: [team-b]}], grant: Share",
			s.node.Private.Host()))
		s.run(pod("team-b", shared, node.IfNotPresent), shared, node.PullFailed, -1) // nobody has proved anything
		s.run(pod("team-a", shared, node.IfNotPresent, node.Alice()), shared, node.Running, -1)
		s.run(pod("team-b", shared, node.IfNotPresent), shared, node.Running, 0)
		s.run(pod("team-b", shared, node.Never), shared, node.Running, 0)
		s.run(pod("team-c", shared, node.Never), shared, node.NeverPulled, 0)
		s.run(pod("team-c", shared, node.IfNotPresent), shared, node.PullFailed, -1)

		s.run(pod("team-c", fenced, node.IfNotPresent), fenced, node.Running, -1) // open from now on
		files.write(3, "fence", fmt.Sprintf("images: ['%s/access/*'], from: [{namespaces: [team-a]}], grant: Fence",
			s.node.Public.Host()))
		for _, policy := range []string{node.IfNotPresent, node.Always, node.Never} {
			want := map[bool]string{true: node.NeverPulled, false: node.PullFailed}[policy == node.Never]
			o := s.run(pod("team-c", fenced, policy, node.Dora()), fenced, want, 0)
			if policy != node.Never && !strings.Contains(o.Text, "is reserved for other namespaces on this node") {
				t.Errorf("%s: the pod reads %q; want that the repository is reserved", policy, o.Text)
			}
			s.run(pod("team-a", fenced, policy), fenced, node.Running, -1)
		}

		// Over a restart, during which a file is removed, nothing is left of its right.
		s.must(s.gate.Stop())
		s.must(os.Remove(filepath.Join(files.folder, "lend.yaml")))
		s.must(s.gate.Start(t.Context()))
		if o := s.k.Start(t.Context(), b); o.State != node.PullFailed {
			t.Errorf("a restart of a container whose right is gone: %v; want %s", o, node.PullFailed)
		}
		s.run(pod("team-b", shared, node.Never), shared, node.Running, 0)
		files.write(1, "share", "")
		s.run(pod("team-b", shared, node.Never), shared, node.NeverPulled, 0)
		files.write(0, "fence", "")
		s.run(pod("team-c", fenced, node.Never), fenced, node.Running, 0)
		if uses := s.metric("pullgate_image_uses_total", "right", "access"); uses == 0 {
			t.Error("no use by a file is counted")
		}
		kept := testkit.Value(os.ReadFile(filepath.Join(s.gate.Dir(), "state", "access.json")))(t)
		if string(kept) != `{"version":1,"files":[]}` {
			t.Errorf("access.json has %s; want no right", kept)
		}
	})
}
