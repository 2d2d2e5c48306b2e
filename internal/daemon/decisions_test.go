package daemon_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/credential"
)

// Every case of the table, over the socket of the built binary, before each runtime. The registry refuses everything,
// so that only what is recorded allows a pod. Standalone, each PullImage shows one credential, and where Secret
// coordinates are needed the stricter verdict is correct. With a pod source the first pre-check must have the verdict,
// and there is no pull.
func TestDecisionsOverTheSocket(t *testing.T) {
	table, err := readDecisions()
	testkit.Must(t, err)
	profiles := criproxytest.Profiles()
	if testkit.Raced {
		profiles = profiles[:1] // `make race` runs all of them without the detector
	}
	ran := map[string]int{}
	for _, c := range table.Cases {
		ran[c.Needs]++
		for _, profile := range profiles {
			t.Run(c.Name+"/"+profile.String()+"/with a pod source", func(t *testing.T) { decide(t, table, c, profile, true) })
		}
		if c.Needs == needsPods {
			c.Verdict, c.NewRecord = verdictReverify, false
		}
		for _, profile := range profiles {
			t.Run(c.Name+"/"+profile.String()+"/standalone", func(t *testing.T) { decide(t, table, c, profile, false) })
		}
	}
	if ran[needsCRI] < 30 || ran[needsPods] < 1 || len(ran) != 2 {
		t.Errorf("cases that were run, by what they need: %v; the table has more", ran)
	}
}

func decide(t *testing.T, table decisionTable, c tableCase, profile criproxytest.Profile, sourced bool) {
	t.Helper()
	t.Parallel()
	mode, allowlist, err := tablePolicy(c.Policy)
	testkit.Must(t, err)
	settings := []string{
		"imagePullCredentialsVerificationPolicy: " + mode, "untrackedImages: Verify",
		"kubeletSkipsAlwaysPrecheck: true",
	}
	if len(allowlist) > 0 {
		settings = append(settings, "preloadedImagesVerificationAllowlist: ["+allowlist[0]+"]")
	}
	source := "api"
	switch c.Exempt {
	case "namespace":
		settings = append(settings, "exempt: {namespaces: [tenant]}")
	case "static":
		source = "file"
	}
	namespace := "tenant"
	if len(c.Pod) > 0 { // the table has no pod with relevant Secrets from two namespaces
		namespace = c.Pod[len(c.Pod)-1].Namespace
	}
	x := (&criproxytest.Kubelet{}).PodFrom(namespace, source)
	r := criproxytest.NewRuntimeAs(t, profile)
	var api *apiServer
	if sourced {
		api = newAPIServer(t, x, c)
		settings = append(settings, api.settings())
	}
	if table.Records[c.Record].Unreadable {
		t.Skip("a start removes what cannot be read, and nothing is read later; " +
			"TestStoreThatFailsOpensNothing in pkg/tracker has these cases")
	}
	p := prepare(t, r.Endpoint(), settings...)
	p.store(table, c, profile)

	id := profile.ID(tableImageID(c.ID))
	if c.ResolvedAsID || c.RuntimeError != "" {
		c.Image = profile.ID(c.Image) // the beginning of an ID, as the runtime resolves it
	}
	var images []criproxytest.Image
	switch {
	case c.RuntimeError == "ambiguous":
		images = []criproxytest.Image{
			{ID: tableImageID("ID2"), Names: []string{"repo.test/a:1"}},
			{ID: "sha256:7f" + id1[9:], Names: []string{"repo.test/b:1"}},
		}
	case c.ResolvedAsID:
		images = []criproxytest.Image{{ID: id, Names: []string{app}}}
	case id != "":
		images = []criproxytest.Image{{ID: id, Names: []string{c.Image}}}
	}
	r.SetImages(images...)
	r.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(name string, _ *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			return criproxytest.Image{}, criproxytest.Denied(name)
		}
	})
	if c.Grant {
		holdGrant(t, r, x, id, c.Image)
	}
	p.start()
	if sourced {
		p.until("pullgate_pod_source_synced", 1)
	}
	k := p.kubelet()
	if !c.Grant {
		testkit.Must(t, k.Sandbox(t.Context(), x))
	}
	writes := p.metric("pullgate_store_sync_seconds_count")
	got := k.Precheck(x, c.Image)
	asked := r.Calls("PullImage")
	for _, s := range c.Pod {
		if got != "" || sourced {
			break
		}
		if ref, err := k.Pull(t.Context(), x, c.Image, s.Content); err == nil {
			if ref != id || r.Calls("PullImage") != asked {
				t.Errorf("pull = %q after %d calls of the runtime; want %q after none", ref, r.Calls("PullImage")-asked, id)
			}
			got = k.Precheck(x, c.Image)
			break
		}
		asked = r.Calls("PullImage")
	}
	if want := map[bool]string{true: id, false: ""}[c.Verdict == verdictAllow]; got != want {
		t.Errorf("pre-check = %q; want %q: %s", got, want, c.Verdict)
	}
	if n := p.metric("pullgate_store_sync_seconds_count") - writes; sourced && (n > 0) != c.NewRecord {
		t.Errorf("%v writes; want some if a new credential is recorded: %v", n, c.NewRecord)
	}
	if c.Writes != nil {
		if n := p.metric("pullgate_store_sync_seconds_count") - writes; int(n) != *c.Writes {
			t.Errorf("%v writes; want %d", n, *c.Writes)
		}
	}
}

// holdGrant starts a container, which shows that the pod has a grant.
func holdGrant(t *testing.T, r *criproxytest.Runtime, x *criproxytest.Pod, id, name string) {
	t.Helper()
	k := criproxytest.NewKubelet(t, r.Endpoint())
	testkit.Must(t, k.Sandbox(t.Context(), x))
	testkit.Must(t, k.Start(t.Context(), testkit.Value(k.Create(t.Context(), x, id, name))(t)))
}

// store writes the initial state of a case, with the daemon's own library.
func (p *process) store(table decisionTable, c tableCase, profile criproxytest.Profile) {
	t := p.t
	t.Helper()
	testkit.Must(t, os.MkdirAll(p.path("state"), 0o700))
	path := p.path("state/records.db")
	s, _, err := records.Open(path, records.Options{})
	testkit.Must(t, err)
	key, err := credential.CreateKey(filepath.Join(p.path("state"), "node.key"))
	testkit.Must(t, err)
	if c.Mark != "" {
		pair := records.Pair{ImageID: profile.ID(tableImageID(c.ID)), Repository: "repo.test/any/pre"}
		if _, err := s.MarkPreloaded(records.Scan{Pairs: []records.Pair{pair}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.MarkPreloaded(records.Scan{First: true}); err != nil {
		t.Fatal(err)
	}
	if c.Intent != "" {
		if _, _, err := s.BeginListed(table.Intents[c.Intent].Name, "repo.test/team/app", time.Now(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if c.Record != "" {
		rec := table.Records[c.Record]
		pair := records.Pair{ImageID: profile.ID(tableImageID(rec.ID)), Repository: rec.Repository}
		present := map[string]struct{}{pair.ImageID: {}}
		intent, _, err := s.BeginListed(rec.Repository+":1", rec.Repository, time.Now(), present)
		testkit.Must(t, err)
		result := records.Result{Pair: pair, Open: rec.Open, At: time.Now()}
		for _, secret := range rec.Secrets {
			result.Credential = key.ID(credential.New(credential.Login{Username: "tenant", Password: secret.Content}))
			result.Secrets = append(result.Secrets, records.SecretRef{
				UID: secret.UID, Namespace: secret.Namespace,
				Name: secret.Name,
			})
		}
		if rec.Open || result.Credential != "" {
			err = s.Prove(intent, result)
		} else {
			err = s.Settle(records.Settlement{Intents: []records.Intent{intent}, Present: []records.Pair{pair}, Now: time.Now()})
		}
		testkit.Must(t, err)
	}
	testkit.Must(t, s.Close())
}
