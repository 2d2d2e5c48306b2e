package admission_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

const (
	// breakGlass is the key of an annotation by which a user asks a backend for an override.
	breakGlass = "x.image-policy.k8s.io/break-glass"
	// pluginDenied is in messages of the plugin.
	pluginDenied = "image policy webhook backend denied one or more images: "
	// apiServer and agent begin the User-Agent of the plugin and of pullgate-policyd.
	apiServer = "Go-http-client/"
	agent     = "pullgate-policyd"
)

func withInit(image string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: image, Env: p.Spec.Containers[0].Env}}
	}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func (r *row) addEphemeral(pod, image string, privileged bool) error {
	pods := r.core.Pods(r.namespace)
	p := testkit.Value(pods.Get(r.Context(), pod, metav1.GetOptions{}))(r)
	debug := corev1.EphemeralContainerCommon{
		Name: "debug-" + string('a'+rune(len(p.Spec.EphemeralContainers))), Image: image, Env: p.Spec.Containers[0].Env,
		SecurityContext:          &corev1.SecurityContext{Privileged: &privileged},
		TerminationMessagePolicy: corev1.TerminationMessageReadFile,
	}
	all := append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: debug})
	p.Spec.EphemeralContainers = all
	_, err := pods.UpdateEphemeralContainers(r.Context(), pod, p, metav1.UpdateOptions{})
	return err
}

// pluginAsksPolicyd has the plugin ask /imagereview of a pullgate-policyd, which allows what restrictions allow.
// Shows: 000-30
func pluginAsksPolicyd(r *row) {
	folder := r.path("images")
	testkit.Must(r, os.MkdirAll(folder, 0o700))
	testkit.Must(r, os.WriteFile(filepath.Join(folder, "images.yaml"), []byte(`apiVersion: policy.pullgate.dev/v1alpha1
kind: PodRestriction
metadata: {name: images}
binding: {mode: Drop, namespaces: [images]}
spec: {spec: {containers: [{image: [{registry: {whitelist: [good.test]}}]}]}}
`), 0o600))
	testkit.Must(r, r.backend.Stop())
	p := node.StartWebhook(r, r.backend.Authority(), r.backend.Address(), r.path("policyd-images"), folder)
	defer func() { testkit.Must(r, p.Stop(), r.backend.Restart()) }()

	const bad = "bad.test/app:1"
	const reason = pluginDenied + `pullgate: image "bad.test/app:1": policy images: ` +
		`spec.spec.containers[0].image[0].registry: "bad.test" is not allowed; allowed: good.test`
	testkit.Must(r, r.createPod(pod("allowed", good, withInit("good.test/init:1"))))
	check(r, denied(r.createPod(pod("container", bad, nil)), reason))
	check(r, denied(r.createPod(pod("init", good, withInit(bad))), reason))
	check(r, denied(r.createPod(pod("override", bad, annotated(breakGlass, "T-7"))), reason)) // pullgate has no override
	check(r, denied(r.addEphemeral("allowed", bad, false), reason))
	testkit.Must(r, r.addEphemeral("allowed", "good.test/debug:1", false))
}

// plugin has the plugin ask the backend of the tests, which knows an override.
func plugin(r *row) {
	const bad, bad2 = "plugin.test/bad:1", "plugin.test/bad:2"
	r.backend.Set(bad, reviewbackend.Answer{Deny: true, Reason: "not scanned", Override: breakGlass})
	r.backend.Set(bad2, reviewbackend.Answer{Deny: true, Reason: "not scanned either"})
	testkit.Must(r, r.createPod(pod("allowed", "plugin.test/good:1", nil)))
	testkit.Must(r, r.createPod(pod("override", bad, annotated(breakGlass, "T-7"))))
	if got := r.backend.Requests(bad)[0].Review.Spec.Annotations; len(got) != 1 || got[breakGlass] != "T-7" {
		r.Errorf("the backend saw the annotations %v", got)
	}
	const reason = pluginDenied + "not scanned"
	check(r, denied(r.createPod(pod("container", bad, nil)), reason))
	check(r, denied(r.createPod(pod("init", "plugin.test/good:1", withInit(bad))), reason))
	check(r, denied(r.createPod(pod("both", bad, withInit(bad2))), reason+"; not scanned either"))
	check(r, denied(r.addEphemeral("allowed", bad, false), reason))
}

// bodies compares what the plugin sends about pods with what pullgate-policyd sends about them as a webhook, and for a
// node about the same images. All of them read one file, byte for byte.
// Shows: 000-06, 000-11, 000-12, 000-13, 000-14, 000-17, 000-18
func bodies(r *row) {
	file := testkit.Value(os.ReadFile(r.path(clusterOne, "scanner.yaml")))(r)
	if want := r.imagePolicy(clusterOne); !bytes.Equal(file, want) {
		r.Fatalf("the file of the plugin is\n%s\nwant\n%s", file, want)
	}
	r.judgedBy(r.one)
	const digest = "Bodies.test:5000/a/b@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	for name, c := range map[string]struct {
		image  string
		change func(*corev1.Pod)
	}{
		"one":         {"bodies.test/one:1", nil},
		"annotations": {"bodies.test/two", annotated(breakGlass, "T-7 <\u00e9&>")},
		"digest":      {digest, nil},
		"init":        {"bodies.test/four:1", withInit("bodies.test/init:1")},
	} {
		p := pod(name, c.image, c.change)
		testkit.Must(r, r.createPod(p))
		if name == "init" { // the node reviews one image at a time
			r.sameBodies(c.image, apiServer, agent)
			continue
		}
		if results, err := r.ask(r.one, p); err != nil || len(results) != 1 || !results[0].Allowed {
			r.Errorf("%s: pullgated gets %+v, %v; want an allow", name, results, err)
		}
		r.sameBodies(c.image, apiServer, agent, agent)
	}
	testkit.Must(r, r.addEphemeral("one", "bodies.test/debug:1", false))
	r.sameBodies("bodies.test/debug:1", apiServer, agent)

	r.bodyWithVolume()

	// The fields and their order, once as text.
	want := `{"kind":"ImageReview","apiVersion":"imagepolicy.k8s.io/v1alpha1","metadata":{},"spec":{"containers":[` +
		`{"image":"bodies.test/four:1"},{"image":"bodies.test/init:1"}],"namespace":"bodies"},"status":{"allowed":false}}`
	for _, request := range r.backend.Requests("bodies.test/four:1") {
		if got := strings.TrimSpace(string(request.Body)); got != want {
			r.Errorf("%s sent\n%s\nwant\n%s", request.Agent, got, want)
		}
	}
}

// bodyWithVolume creates a pod with an image volume, which the plugin does not send.
func (r *row) bodyWithVolume() {
	r.Helper()
	const image, volume = "bodies.test/five:1", "bodies.test/volume:1"
	testkit.Must(r, r.createPod(pod("volume", image, func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data"}}
		p.Spec.Volumes[0].Image = &corev1.ImageVolumeSource{Reference: volume}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	})))
	var got [][]string
	for _, request := range r.backend.Requests(image) {
		got = append(got, request.Images())
	}
	if !reflect.DeepEqual(got, [][]string{{image}, {image, volume}}) {
		r.Errorf("requests about %q; want that of the plugin, and ours with the volume", got)
	}
}

// sameBodies compares the requests about an image, which these agents must have sent in this order.
func (r *row) sameBodies(image string, agents ...string) {
	r.Helper()
	requests := r.backend.Requests(image)
	if len(requests) != len(agents) {
		r.Fatalf("%s: %d requests; want %d", image, len(requests), len(agents))
	}
	for i, agent := range agents {
		got := requests[i]
		sent := fmt.Sprintf("%s %s of %s by %s", got.Method, got.URI, got.Client, got.Agent)
		if want := "POST /imagereview?timeout=30s of " + clusterOne + " by " + agent; !strings.HasPrefix(sent, want) {
			r.Errorf("%s: request %d is %s; want %s", image, i, sent, want)
		}
		if !reflect.DeepEqual(document(r.T, got.Body), document(r.T, requests[0].Body)) {
			r.Errorf("%s: %s sent\n%s\nand %s\n%s", image, agents[0], requests[0].Body, agent, got.Body)
		}
	}
}

func document(t *testing.T, text []byte) (document any) {
	t.Helper()
	testkit.Must(t, json.Unmarshal(text, &document))
	return document
}

// ask asks a pullgate-policyd about the first image of a pod, as pullgated does.
func (r *row) ask(p *webhook, about *corev1.Pod) ([]policyfiles.Answer, error) {
	r.Helper()
	client, hash := r.client(p)
	request := policyclient.ReviewRequest{PolicyHash: hash, Namespace: r.namespace, Annotations: about.Annotations}
	request.Images = []string{about.Spec.Containers[0].Image}
	return client.Review(r.Context(), request)
}

// client returns a client of a pullgate-policyd, as pullgated has it, and the hash of the policy files.
func (r *row) client(p *webhook) (client *policyclient.Client, hash string) {
	r.Helper()
	client = testkit.Value(policyclient.New(p.Endpoint(), policyclient.Options{}))(r)
	r.Cleanup(func() { check(r, client.Close()) })
	found := regexp.MustCompile(`"Policies read" .*hash="([0-9a-f]+)"`).FindStringSubmatch(p.Log())
	if found == nil {
		r.Fatalf("no hash of the policies in\n%s", p.Log())
	}
	return client, found[1]
}

// twoClusters use one backend with a token each, by which the backend knows them.
// Shows: 000-20
func twoClusters(r *row) {
	const deniedToOne, deniedToTwo = "clusters.test/one:1", "clusters.test/two:1"
	r.backend.Set(deniedToOne, reviewbackend.Answer{Deny: true, Reason: "not in cluster one", Client: clusterOne})
	r.backend.Set(deniedToTwo, reviewbackend.Answer{Deny: true, Reason: "not in cluster two", Client: clusterTwo})
	check(r, denied(r.createPod(pod("a", deniedToOne, nil)), pluginDenied+"not in cluster one"))
	testkit.Must(r, r.createPod(pod("b", deniedToTwo, nil)))
	for image, want := range map[string]string{deniedToOne: "", deniedToTwo: "not in cluster two"} {
		results, err := r.ask(r.two, pod("c", image, nil))
		if err != nil || len(results) != 1 || results[0].Allowed != (want == "") || results[0].Reason != want {
			r.Errorf("%s in cluster two: %+v, %v; want the reason %q", image, results, err, want)
		}
		var clients []string
		for _, request := range r.backend.Requests(image) {
			clients = append(clients, request.Client)
		}
		if !slices.Equal(clients, []string{clusterOne, clusterTwo}) {
			r.Errorf("the requests about %s are of %q", image, clients)
		}
	}
}
