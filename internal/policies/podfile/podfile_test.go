package podfile_test

import (
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
)

func read(t *testing.T, text string) podfile.Pod {
	t.Helper()
	pods, err := podfile.Read([]byte(text))
	if err != nil || len(pods) != 1 {
		t.Fatalf("Read = %d pods, %v; want 1", len(pods), err)
	}
	return pods[0]
}

// builtIn are workloads of Kubernetes.
var builtIn = []podfile.Workload{
	{"", "podtemplates", "template"},
	{"", "replicationcontrollers", "spec.template"},
	{"apps", "deployments", "spec.template"},
	{"apps", "statefulsets", "spec.template"},
	{"apps", "daemonsets", "spec.template"},
	{"apps", "replicasets", "spec.template"},
	{"batch", "jobs", "spec.template"},
	{"batch", "cronjobs", "spec.jobTemplate.spec.template"},
}

// workloads returns documents, each of a version, a kind and the path of its pod template. The name is that of the
// kind.
func workloads(of ...string) string {
	var all strings.Builder
	for _, w := range of {
		f := strings.Fields(w)
		template := "{metadata: {labels: {a: b}}, spec: {containers: [{name: web, image: busybox}]}}"
		fields := strings.Split(f[2], ".")
		slices.Reverse(fields)
		for _, field := range fields {
			template = "{" + field + ": " + template + "}"
		}
		all.WriteString("---\n{apiVersion: " + f[0] + ", kind: " + f[1] + ", metadata: {name: " + f[1] +
			", namespace: team}, " + template[1:] + "\n")
	}
	return all.String()
}

func TestRead(t *testing.T) {
	const pod = "{apiVersion: v1, kind: Pod, metadata: {name: NAME}, spec: {containers: [{name: web, image: busybox}]}}\n"
	a, b := strings.Replace(pod, "NAME", "a", 1), strings.Replace(pod, "NAME", "b, namespace: team", 1)
	for name, tc := range map[string]struct{ text, want, err string }{
		"one":           {text: a, want: "default/a"},
		"two documents": {text: "# first\n---\n" + a + "---\n" + b + "---\n", want: "default/a team/b"},
		"a list":        {text: "apiVersion: v1\nkind: List\nitems:\n- " + a + "- " + b, want: "default/a team/b"},
		"JSON": {text: `{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"a-"},
			"spec":{"containers":[{"name":"web"}]}}`, want: "default/a-"},
		"nothing":       {text: "# empty\n", err: "no Pod"},
		"another kind":  {text: "{apiVersion: v1, kind: Service}", err: `kind "Service": only Pods`},
		"another group": {text: "{apiVersion: example.com/v1, kind: Deployment}", err: `kind "Deployment": only Pods`},
		"workloads": {text: workloads("v1 PodTemplate template", "apps/v1 Deployment spec.template",
			"apps/v1 StatefulSet spec.template", "apps/v1 DaemonSet spec.template", "apps/v1 ReplicaSet spec.template",
			"batch/v1 Job spec.template", "batch/v1 CronJob spec.jobTemplate.spec.template",
			"v1 ReplicationController spec.template"), want: "team/PodTemplate team/Deployment team/StatefulSet " +
			"team/DaemonSet team/ReplicaSet team/Job team/CronJob team/ReplicationController"},
		"no template": {text: "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}", err: "spec.template: Required"},
		"not a template": {text: "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: " +
			"x}}", err: "spec.template is not an object"},
		"nested lists": {text: "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: " +
			"[[{}]]}}", err: "spec.template[0] is not an object"},
		"unknown in it": {text: "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {spec: " +
			"{hostPIDs: true}}}}", err: `spec.template: unknown field "spec.hostPIDs"`},
		"in a list": {text: "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Secret}]}", err: "items[0]: "},
		"a list in a list": {text: "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: List, items: " +
			"[]}]}", err: `items[0]: apiVersion "v1", kind "List": only Pods`},
		"an unknown key": {text: strings.Replace(a, "image:", "privilged: true, image:", 1), err: `unknown field ` +
			`"spec.containers[0].privilged"`},
		"another case": {text: strings.Replace(a, "spec: {", "spec: {HostPID: true, ", 1), err: `unknown field ` +
			`"spec.HostPID"`},
		"no name":      {text: "{apiVersion: v1, kind: Pod, spec: {containers: [{name: web}]}}", err: "name: Required"},
		"no container": {text: "{apiVersion: v1, kind: Pod, metadata: {name: a}}", err: "pod a: spec.containers: Required"},
		"no YAML":      {text: "{", err: "yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			pods, err := podfile.Read([]byte(tc.text), builtIn...)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("Read = %v; want an error with %q", err, tc.err)
				}
				return
			}
			var got []string
			for _, p := range pods {
				got = append(got, p.Namespace+"/"+p.Name)
			}
			if s := strings.Join(got, " "); err != nil || s != tc.want {
				t.Errorf("Read = %s, %v; want %s", s, err, tc.want)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	pod, containers := read(t,
		`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {initContainers: [{name: init, image: "busybox:1"}],
		containers: [{name: web, image: busybox}, {name: both, image: "busybox:latest@sha256:`+
			strings.Repeat("05b3abf2", 8)+`"}]}}`).AtAdmission()
	if pod.RestartPolicy != admission.Set("Always") || pod.DNSPolicy != admission.Set("ClusterFirst") ||
		pod.TerminationGracePeriodSeconds != admission.Set[int64](30) {
		t.Errorf("defaults of the pod: %v", pod)
	}
	for i, want := range []string{"IfNotPresent", "Always", "Always"} {
		if containers[i].ImagePullPolicy != admission.Set(want) {
			t.Errorf("container %s: %v; want %s", containers[i].Name, containers[i].ImagePullPolicy, want)
		}
		if m, _ := containers[i].Mounts.Get(); len(m) != 1 || m[0].Type != admission.Set("projected") {
			t.Errorf("container %s: mounts %v; want the token", containers[i].Name, m)
		}
	}
	_, containers = read(t,
		`{apiVersion: v1, kind: Pod, metadata: {name: a},
			spec: {automountServiceAccountToken: false, containers: [{name: web}]}}`).AtAdmission()
	if m, _ := containers[0].Mounts.Get(); len(m) != 0 {
		t.Errorf("mounts %v of a pod that declines the token", m)
	}
}

const full = `
apiVersion: v1
kind: Pod
metadata: {name: a, labels: {app: web}}
spec:
  automountServiceAccountToken: false
  shareProcessNamespace: true
  securityContext: {fsGroup: 5, supplementalGroups: [6], runAsNonRoot: true}
  volumes:
  - {name: host, hostPath: {path: /var/log, type: Directory}}
  - {name: claim, persistentVolumeClaim: {claimName: c}}
  initContainers: [{name: init, securityContext: {runAsUser: 7, privileged: true}}]
  containers:
  - name: web
    volumeDevices: [{name: claim, devicePath: /dev/c}]
    volumeMounts:
    - {name: host, mountPath: /a}
    - {name: host, mountPath: /b, subPath: x, mountPropagation: Bidirectional}
`

// Without the pod source, the views have what the table of docs/restriction-fields.md says. See also
// TestViewsAreThoseOfMessages.
func TestViewsOfANode(t *testing.T) {
	starts := read(t, full).AtNode(podfile.Node{})
	if len(starts) != 3 || starts[0].Container != nil || starts[2].Container.Name != "web" {
		t.Fatalf("%d starts; want that of the sandbox, of init and of web", len(starts))
	}
	pod, init, web := starts[2].Pod, starts[1].Container, starts[2].Container
	if groups, _ := pod.Groups.Get(); len(groups) != 2 || groups[0] != 5 ||
		pod.ShareProcessNamespace != admission.Set(true) {
		t.Errorf("groups %v, shared processes %v", groups, pod.ShareProcessNamespace)
	}
	if token, ok := pod.AutomountServiceAccountToken.Effective(); token || !ok {
		t.Error("the token is not known to be absent")
	}
	if init.RunAsUser != admission.Set[int64](7) || web.RunAsUser != (admission.Value[int64]{}) ||
		web.RunAsNonRoot != admission.Effective(true) {
		t.Errorf("users %v, %v, not 0: %v", init.RunAsUser, web.RunAsUser, web.RunAsNonRoot)
	}
	if init.Privileged != admission.Set(true) || web.Privileged != admission.Effective(false) ||
		web.AllowPrivilegeEscalation != admission.Effective(true) {
		t.Errorf("privileges %v, %v, %v", init.Privileged, web.Privileged, web.AllowPrivilegeEscalation)
	}
	mounts, _ := web.Mounts.Get()
	if len(mounts) != 3 || mounts[0].HostPath != admission.Set("/var/log") ||
		mounts[0].HostPathType != (admission.Value[string]{}) ||
		mounts[1].Volume != (admission.Volume{}) || mounts[2].Type != admission.Set("csi") {
		t.Errorf("mounts %v", mounts)
	}
	if mounts[0].Propagation != admission.Effective("None") || mounts[1].Propagation != admission.Set("Bidirectional") {
		t.Errorf("propagation %v, %v", mounts[0].Propagation, mounts[1].Propagation)
	}
}

func TestImageUser(t *testing.T) {
	p := read(t, `{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: web}]}}`)
	if c := p.AtNode(podfile.Node{})[1].Container; c.RunAsUser != (admission.Value[int64]{}) ||
		c.RunAsNonRoot != (admission.Value[bool]{}) {
		t.Errorf("user %v, not 0: %v; want unknown", c.RunAsUser, c.RunAsNonRoot)
	}
	if c := p.AtNode(podfile.Node{ImageUser: new(int64(0))})[1].Container; c.RunAsUser != admission.Set[int64](0) ||
		c.RunAsNonRoot != admission.Effective(false) {
		t.Errorf("user %v, not 0: %v; want 0 and false", c.RunAsUser, c.RunAsNonRoot)
	}
}

// With the pod source, nothing that the file has is unknown.
func TestNodeWithPodSource(t *testing.T) {
	web := read(t, full).AtNode(podfile.Node{PodSource: true})[2]
	if web.Pod.RestartPolicy != admission.Set("Always") || web.Pod.FSGroup != admission.Set[int64](5) ||
		web.Container.Kind != admission.Set(admission.KindContainer) {
		t.Errorf("view %v, %v", web.Pod, web.Container)
	}
	if mounts, _ := web.Container.Mounts.Get(); mounts[0].HostPathType != admission.Set("Directory") ||
		mounts[1].Type != admission.Set(admission.TypeHostPath) {
		t.Errorf("mounts %v", mounts)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
