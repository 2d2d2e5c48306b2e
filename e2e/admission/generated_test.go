package admission_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/api/imagepolicy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

const (
	// generatedNamespaces is how many namespaces have policies of their own, and generatedPods how many pods each has.
	generatedNamespaces = 50
	generatedPods       = 10
	// deniedImage is one of the generated images. The backend denies it in half of the namespaces.
	deniedImage = "bad.test/b"
)

// generated creates generated pods under generated policies. What the webhook admits, the node does not deny, except
// for the reasons of nodeReason. GENERATED_SEED repeats a run.
func generated(r *row) {
	seed := rand.Uint64()
	if text := os.Getenv("GENERATED_SEED"); text != "" {
		seed = testkit.Value(strconv.ParseUint(text, 10, 64))(r)
	}
	r.Logf("GENERATED_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	g := r.generate(random)
	h := r.startWebhook(r.T, "generated", loopback, g.folder, "kubeconfig: "+r.path("namespaces.kubeconfig"))
	r.backend.Set(deniedImage, reviewbackend.Answer{Deny: true, Reason: "not scanned", Client: clusterTwo})
	r.register(h.configuration(r.T))
	r.label(webhookLabel, h.name)
	r.until("the webhook judges namespaces", func() error { return denies(r.probe()) })

	admitted := r.createAll(g.pods)
	denied := len(g.pods) - len(admitted)
	node := r.policyTest("node", g, admitted)
	admission := r.policyTest("admission", g, admitted)
	byNode := map[string]int{}
	for i, result := range node {
		if !admission[i].Admitted {
			r.Errorf("%s/%s: the webhook admits the pod, and pullgatectl policy test does not: %+v",
				result.Namespace, result.Name, admission[i].Violations)
		}
		for _, v := range result.Violations {
			reason := nodeReason(v, len(admission[i].AcceptedBy) > 0)
			if reason == "" {
				text := testkit.Value(json.Marshal(admitted[i]))(r)
				r.Errorf("the node denies a pod that the webhook admits: %s\n%s", v.Message, text)
			}
			byNode[reason]++
		}
	}
	r.reviewedByNode(h, admitted)
	r.admitsParts(h, admitted)
	r.Logf("%d admitted, %d denied; by the node for %v", len(admitted), denied, byNode)
	if len(admitted) == 0 || denied == 0 {
		r.Errorf("%d admitted, %d denied; want both answers", len(admitted), denied)
	}
}

type generation struct {
	folder, labels string // the policy folder, and the file with the labels of namespaces for a node
	pods           []*corev1.Pod
}

// generate makes namespaces, their policies, and pods that are not created yet.
func (r *row) generate(random *rand.Rand) generation {
	r.Helper()
	g := generation{folder: r.path("generated"), labels: r.path("labels.yaml")}
	testkit.Must(r, os.Mkdir(g.folder, 0o700))
	write := func(name string, text []byte) {
		testkit.Must(r, os.WriteFile(filepath.Join(g.folder, name), text, 0o600))
	}
	labels, reviewed := "", ""
	for i := range generatedNamespaces {
		namespace := fmt.Sprintf("generated-%d", i)
		r.makeNamespace(namespace, map[string]string{webhookLabel: "generated", "team": namespace})
		labels += namespace + ": {team: " + namespace + "}\n"
		if i%2 == 0 {
			reviewed += ", " + namespace
		}
		for j := range 1 + random.IntN(2) {
			name := fmt.Sprintf("p-%d-%d", i, j)
			write(name+".yaml", samplePolicy(random, name, namespace))
		}
		for range generatedPods {
			g.pods = append(g.pods, samplePod(random, namespace))
		}
	}
	write("probe.yaml", []byte(restriction("probe", "", "namespaces: ["+r.namespace+"]", "hostNetwork")))
	write("scanner.yaml", append(r.imagePolicy(clusterTwo), "match: {namespaces: ["+reviewed[2:]+"]}\n"...))
	testkit.Must(r, os.WriteFile(g.labels, []byte(labels), 0o600))
	return g
}

// createAll creates pods as dry runs, and returns those that are admitted.
func (r *row) createAll(pods []*corev1.Pod) []*corev1.Pod {
	r.Helper()
	errs := make([]error, len(pods))
	var all errgroup.Group
	all.SetLimit(8)
	for i, p := range pods {
		all.Go(func() error {
			_, errs[i] = r.core.Pods(p.Namespace).Create(r.Context(), p, dryRunOnly)
			return nil
		})
	}
	_ = all.Wait() // each error is looked at
	var admitted []*corev1.Pod
	for i, err := range errs {
		switch {
		case err == nil:
			admitted = append(admitted, pods[i])
		case denies(err) != nil:
			r.Errorf("%s: %v; want a pod that is admitted or denied by the webhook", pods[i].Namespace, err)
		}
	}
	return admitted
}

// policyTest has pullgatectl judge pods, as a node or at admission.
func (r *row) policyTest(at string, g generation, pods []*corev1.Pod) []policyfiles.TestedPod {
	r.Helper()
	program := testkit.Value(node.Program("pullgatectl"))(r)
	list := corev1.PodList{}
	list.APIVersion, list.Kind = "v1", "List"
	for _, p := range pods {
		list.Items = append(list.Items, *p)
	}
	file := r.path("pods.json")
	text := testkit.Value(json.Marshal(list))(r)
	testkit.Must(r, os.WriteFile(file, text, 0o600))
	out, err := exec.Command(program, "policy", "test", "--at", at, "--policies", g.folder,
		"--namespace-labels", g.labels, "-f", file, "-o", "json").Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() != 10 {
		r.Fatalf("policy test: %v: %s", err, exit.Stderr)
	}
	var result policyfiles.TestResult
	testkit.Must(r, json.Unmarshal(out, &result))
	if len(result.Pods) != len(pods) {
		r.Fatalf("policy test has %d pods; want %d", len(result.Pods), len(pods))
	}
	return result.Pods
}

// reviewedByNode asks about each image of pods as pullgated does, one at a time.
func (r *row) reviewedByNode(h *webhook, pods []*corev1.Pod) {
	r.Helper()
	type question struct{ namespace, image string }
	asked := map[question]bool{}
	client, hash := r.client(h)
	for _, p := range pods {
		for _, c := range append(p.Spec.Containers, p.Spec.InitContainers...) {
			q := question{p.Namespace, c.Image}
			if asked[q] {
				continue
			}
			asked[q] = true
			about := policyclient.ReviewRequest{PolicyHash: hash, Namespace: q.namespace, Annotations: p.Annotations}
			about.Images = []string{q.image}
			for _, result := range testkit.Value(client.Review(r.Context(), about))(r) {
				if !result.Allowed {
					r.Errorf("the node denies the image %s in %s, and the webhook admits it: %+v", q.image, q.namespace, result)
				}
			}
		}
	}
}

// admitsParts checks that the webhook denies no template and no image of pods that it admits.
func (r *row) admitsParts(h *webhook, pods []*corev1.Pod) {
	r.Helper()
	for i, p := range pods {
		template := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: p.Labels}, Spec: p.Spec,
		}}
		_, err := r.core.PodTemplates(p.Namespace).Create(r.Context(), template, dryRunOnly)
		if err != nil {
			r.Errorf("pod %d: %v; want a template that is admitted as its pod is", i, err)
		}
		review := v1alpha1.ImageReview{Spec: v1alpha1.ImageReviewSpec{Namespace: p.Namespace}}
		review.APIVersion, review.Kind = "imagepolicy.k8s.io/v1alpha1", "ImageReview"
		for _, c := range append(p.Spec.Containers, p.Spec.InitContainers...) {
			review.Spec.Containers = append(review.Spec.Containers, v1alpha1.ImageReviewContainerSpec{Image: c.Image})
		}
		_, text, err := h.Post(r.Context(), "/imagereview", bytes.NewReader(mustJSON(r.T, review)))
		testkit.Must(r, err)
		if testkit.Must(r, json.Unmarshal([]byte(text), &review)); !review.Status.Allowed {
			r.Errorf("pod %d: images are denied, %q, and the pod is not", i, review.Status.Reason)
		}
	}
}
