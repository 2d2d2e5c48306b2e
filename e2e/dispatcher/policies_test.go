package dispatcher_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// TestPolicies tries, with the identity of the dispatcher, what its rights would allow and the policies of the chart do
// not, and with that of an administrator, what only the dispatcher may do in its namespace.
func TestPolicies(t *testing.T) {
	t.Parallel()
	onEach(t, 2, policies)
}

func policies(x *test) {
	t := x.T
	x.nodes[0].fails.Store(true)
	x.create("")
	x.becomes("Stopped", "failed 1, pending 1") // so that a pod of the dispatcher stays
	config := testkit.Value(clientcmd.RESTConfigFromKubeConfig(testkit.Value(os.ReadFile(x.fleet.kubeconfig))(t)))(t)
	config.UserAgent = "policies-test"
	dispatcher := testkit.Value(kubernetes.NewForConfig(config))(t)
	dry := []string{metav1.DryRunAll}
	pods := testkit.Value(x.fleet.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: "fleet.pullgate.dev/rollout=" + x.pool,
	}))(t)
	if len(pods.Items) != 1 {
		t.Fatalf("%d pods; want that of the failure", len(pods.Items))
	}
	refused := func(what, because string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), because) {
			t.Errorf("%s is answered with %v; want a refusal with %q", what, err, because)
		}
	}
	create := func(by kubernetes.Interface, change func(*corev1.Pod)) error {
		p := pods.Items[0].DeepCopy()
		p.ObjectMeta = metav1.ObjectMeta{Name: "try", Labels: p.Labels, Annotations: p.Annotations}
		change(p)
		_, err := by.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{DryRun: dry})
		return err
	}
	// What follows shows nothing if the pod itself is refused.
	if err := create(dispatcher, func(*corev1.Pod) {}); err != nil {
		t.Errorf("the pod of the dispatcher is refused: %v", err)
	}
	const alone = "of one container, on one node, without a token"
	for what, c := range map[string]struct {
		because string
		change  func(*corev1.Pod)
	}{
		"the host's network": {alone, func(p *corev1.Pod) { p.Spec.HostNetwork = true }},
		"the host's PIDs":    {alone, func(p *corev1.Pod) { p.Spec.HostPID = true }},
		"no node":            {alone, func(p *corev1.Pod) { p.Spec.NodeName = "" }},
		"a token":            {alone, func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = new(true) }},
		"another label":      {alone, func(p *corev1.Pod) { p.Labels = nil }},
		"another container":  {alone, func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, sidecar()) }},
		"an init container":  {alone, func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{sidecar()} }},
		"privileges": {"without privileges", func(p *corev1.Pod) {
			security(p).Privileged, security(p).AllowPrivilegeEscalation = new(true), nil
		}},
		"a capability": {"without privileges", func(p *corev1.Pod) {
			security(p).Capabilities.Add = []corev1.Capability{"SYS_ADMIN"}
		}},
		"another command": {"without privileges", func(p *corev1.Pod) {
			p.Spec.Containers[0].Command = []string{"/bin/sh", "-c", "true", "x"}
		}},
		"the root folder": {"dispatcher.installFolders", func(p *corev1.Pod) { p.Spec.Volumes[0].HostPath.Path = "/" }},
		"a Secret": {"dispatcher.installFolders", func(p *corev1.Pod) {
			p.Spec.Volumes[2].VolumeSource = corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "any"}}
		}},
	} {
		refused("a pod of the dispatcher with "+what, c.because, create(dispatcher, c.change))
	}
	const only = "only pullgate-dispatcher makes pods"
	refused("the same pod of an administrator", only, create(x.fleet.Client, func(*corev1.Pod) {}))
	refused("any pod with a hostPath", only, create(x.fleet.Client, func(p *corev1.Pod) { p.Labels = nil }))
	if err := create(x.fleet.Client, func(p *corev1.Pod) {
		p.Labels, p.Annotations, p.Spec.Volumes = nil, nil, nil // 1.30 has an annotation by container
		p.Spec.Containers = []corev1.Container{sidecar()}
	}); err != nil {
		t.Errorf("a pod of an administrator without a hostPath is refused: %v", err)
	}
	name := pods.Items[0].Name
	_, err := x.fleet.Client.CoreV1().Pods(namespace).Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"fleet.pullgate.dev/confirm":"a"}}}`), metav1.PatchOptions{DryRun: dry})
	refused("a confirmation by an administrator", "only pullgate-dispatcher confirms", err)
	change := func(by kubernetes.Interface, body string, sub ...string) error {
		_, err := by.CoreV1().Pods(namespace).Patch(t.Context(), name, types.StrategicMergePatchType, []byte(body),
			metav1.PatchOptions{DryRun: dry}, sub...)
		return err
	}
	for what, body := range map[string]string{
		"its label taken": `{"metadata":{"labels":{"app.kubernetes.io/name":null}}}`,
		"another request": `{"metadata":{"annotations":{"fleet.pullgate.dev/request":"{}"}}}`,
		"another image":   `{"spec":{"containers":[{"name":"install","image":"a:1"}]}}`,
	} {
		refused("an administrator's pod with "+what, "is not changed", change(x.fleet.Client, body))
		refused("a dispatcher's pod with "+what, "", change(dispatcher, body))
	}
	refused("a confirmation by the node", "only pullgate-dispatcher confirms",
		change(x.nodes[0].api, `{"metadata":{"annotations":{"fleet.pullgate.dev/confirm":"a"}}}`, "status"))
	if err := change(x.nodes[0].api, `{"status":{"message":"a"}}`, "status"); err != nil {
		t.Errorf("the status of the pod, from the node, is refused: %v", err)
	}
	refused("a pod with a name of the dispatcher's", only, create(x.fleet.Client, func(p *corev1.Pod) {
		p.Name, p.Labels, p.Annotations, p.Spec.Volumes = "pullgate-install-0123456789abcdef", nil, nil, nil
		p.Spec.Containers = []corev1.Container{sidecar()}
	}))
	for _, sub := range []string{"exec", "attach"} {
		refused("kubectl "+sub, "nobody runs programs", x.fleet.Client.CoreV1().RESTClient().Post().Resource("pods").
			Namespace(namespace).Name(name).SubResource(sub).Param("command", "a").Param("stdout", "1").
			Do(t.Context()).Error())
	}
	debugged := pods.Items[0].DeepCopy()
	debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debug", Image: "a:1", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		},
	}}
	_, err = x.fleet.Client.CoreV1().Pods(namespace).UpdateEphemeralContainers(t.Context(), name, debugged,
		metav1.UpdateOptions{DryRun: dry})
	refused("an ephemeral container", "no ephemeral containers", err)

	patch := func(sub string, body any) error {
		text := testkit.Value(json.Marshal(body))(t)
		var subresources []string
		if sub != "" {
			subresources = []string{sub}
		}
		_, err := dispatcher.CoreV1().Nodes().Patch(t.Context(), x.nodes[1].name, types.StrategicMergePatchType, text,
			metav1.PatchOptions{DryRun: dry}, subresources...)
		return err
	}
	type object = map[string]any
	for what, c := range map[string]struct {
		because, sub string
		body         object
	}{
		"a label":       {"no other labels", "", object{"metadata": object{"labels": object{"pool": "x"}}}},
		"a label's end": {"no other labels", "", object{"metadata": object{"labels": object{"pool": nil}}}},
		"an owner": {"no owners", "", object{"metadata": object{"ownerReferences": []object{{
			"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "gone",
		}}}}},
		"a finalizer": {"no owners", "", object{"metadata": object{"finalizers": []string{"example.com/a"}}}},
		"an address": {"no other condition", "status", object{"status": object{"addresses": []object{{
			"type": "InternalIP", "address": "192.0.2.1",
		}}}}},
		"the kubelet's port": {"no other condition", "status", object{"status": object{"daemonEndpoints": object{
			"kubeletEndpoint": object{"Port": 1},
		}}}},
		"an annotation": {"no other annotations", "", object{"metadata": object{"annotations": object{"a": "b"}}}},
		"unschedulable": {"no other taint", "", object{"spec": object{"unschedulable": true}}},
		"another taint": {"no other taint", "", object{"spec": object{"taints": []object{{
			"key": "a", "effect": "NoExecute",
		}}}}},
		"the end of all": {"no other taint", "", object{"spec": object{"taints": nil}}},
		"Ready": {"no other condition", "status", object{"status": object{"conditions": []object{{
			"type": "Ready", "status": "False",
		}}}}},
		"allocatable": {"no other condition", "status", object{"status": object{"allocatable": object{"cpu": "1"}}}},
	} {
		refused("a patch of a Node by the dispatcher: "+what, c.because, patch(c.sub, c.body))
	}
}

// TestNodesDoNotSteerTheirRollout tries, with the rights of a kubelet, to change what the dispatcher keeps on its Node.
func TestNodesDoNotSteerTheirRollout(t *testing.T) {
	x := begin(t, 1)
	n := x.nodes[0]
	x.create("")
	x.becomes("Complete", "installed 1")
	nodes, claim := n.api.CoreV1().Nodes(), "fleet.pullgate.dev/rollout"
	if l := testkit.Value(nodes.Get(t.Context(), n.name, metav1.GetOptions{}))(t).Labels; l[claim] != x.pool {
		t.Fatalf("labels %v; want that of the Rollout", l)
	}
	type object = map[string]any
	patch := func(metadata object, sub ...string) error {
		body := testkit.Value(json.Marshal(object{"metadata": metadata}))(t)
		_, err := nodes.Patch(t.Context(), n.name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, sub...)
		return err
	}
	wants := func(what string, err error, refused bool) {
		t.Helper()
		const because = "a node does not change what pullgate-dispatcher keeps on it"
		if refused != (err != nil && strings.Contains(err.Error(), because)) || !refused && err != nil {
			t.Errorf("%s is answered with %v; want a refusal: %v", what, err, refused)
		}
	}
	for _, sub := range [][]string{nil, {"status"}} {
		for what, metadata := range map[string]object{
			"another Rollout":            {"labels": object{claim: "other"}},
			"no Rollout":                 {"labels": object{claim: nil}},
			"a new label":                {"labels": object{"fleet.pullgate.dev/any": ""}},
			"another version":            {"annotations": object{"fleet.pullgate.dev/installed": "{}"}},
			"no version":                 {"annotations": object{"fleet.pullgate.dev/installed": nil}},
			"an annotation of its own":   {"annotations": object{"fleet.pullgate.dev/any": ""}},
			"both, beside a usual label": {"labels": object{"zone": "a", claim: nil}, "annotations": object{"a": "b"}},
		} {
			wants(fmt.Sprintf("%s %v", what, sub), patch(metadata, sub...), true)
		}
		wants("a usual label and annotation", patch(object{
			"labels": object{"zone": "a", "fleet.pullgate.development/a": "b"}, "annotations": object{"a": "b"},
		}, sub...), false)
	}
	wants("the end of these", patch(object{"labels": object{"zone": nil}, "annotations": object{"a": nil}}), false)

	create := func(labels, annotations map[string]string) error {
		meta := metav1.ObjectMeta{Name: n.name, Labels: labels, Annotations: annotations}
		_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: meta}, metav1.CreateOptions{})
		return err
	}
	n.healthy.Store(false)
	testkit.Must(t, x.fleet.Client.CoreV1().Nodes().Delete(t.Context(), n.name, metav1.DeleteOptions{}))
	wants("a Node with a Rollout", create(map[string]string{claim: x.pool}, nil), true)
	wants("a Node with a version", create(nil, map[string]string{"fleet.pullgate.dev/installed": "{}"}), true)
	wants("a Node", create(map[string]string{"zone": "a"}, map[string]string{"a": "b"}), false)
}

func sidecar() corev1.Container { return corev1.Container{Name: "sidecar", Image: "a:1"} }

func security(p *corev1.Pod) *corev1.SecurityContext { return p.Spec.Containers[0].SecurityContext }
