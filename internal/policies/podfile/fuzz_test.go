package podfile

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
)

// Every file is refused or read, and a Pod that was read is read again from its printed form, which stays the same.
func FuzzRead(f *testing.F) {
	for _, text := range []string{
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: web, image: busybox}]}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {generateName: a-, namespace: team}\nspec: {initContainers: [{name: i}], " +
			"containers: [{name: web}], ephemeralContainers: [{name: e}]}\n---\n# nothing\n---\n",
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: " +
			"web, volumeMounts: [{name: v, mountPath: m, subPath: s}], volumeDevices: [{name: v, devicePath: d}]}], volumes: " +
			"[{name: v, hostPath: {path: /}}]}}\n",
		`{"apiVersion":"v1","kind":"PodList","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},
			"spec":{"containers":[{"name":"web","image":"@"}]}}]}`,
		"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: List, items: " +
			"[null, {}]}]}]\n",
		"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\napiVersion: v1\nkind: Pod\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {automountServiceAccountToken: false, " +
			"terminationGracePeriodSeconds: -1, securityContext: {fsGroup: 1, runAsUser: 0}, containers: [{securityContext: " +
			"{capabilities: {add: [\"\"]}, seLinuxOptions: {}}}]}\n",
		"", "---", "\xff", "{", "# x\n--- \n---\n", "kind: Pod\x00",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		pods, err := Read(data)
		if err != nil {
			if len(pods) > 0 {
				t.Errorf("%d pods with the error %v", len(pods), err)
			}
			return
		}
		if len(pods) == 0 || len(pods) > len(data) {
			t.Errorf("%d pods in %d bytes", len(pods), len(data))
		}
		for _, p := range pods {
			p.AtAdmission()
			user := int64(0)
			for _, n := range []Node{{}, {PodSource: true, ImageUser: &user}} {
				for _, s := range p.AtNode(n) {
					if s.Pod.Namespace != p.Namespace {
						t.Errorf("a view of namespace %q for a pod of %q", s.Pod.Namespace, p.Namespace)
					}
				}
			}
			text := printed(t, p)
			again, err := Read(text)
			if err != nil || len(again) != 1 || again[0].Name != p.Name || again[0].Namespace != p.Namespace {
				t.Fatalf("%s is read as %v, %v; want the pod %s/%s", text, again, err, p.Namespace, p.Name)
			}
			if second := printed(t, again[0]); !bytes.Equal(text, second) {
				t.Errorf("printed as\n%s\nand then as\n%s", text, second)
			}
		}
	})
}

func printed(t *testing.T, p Pod) []byte {
	t.Helper()
	text, err := json.Marshal(p.api)
	testkit.Must(t, err)
	return text
}
