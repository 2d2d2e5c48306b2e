package restriction_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit"
)

// Shows: 003-01, 003-02, 003-03
func TestBinding(t *testing.T) {
	known := admission.Set(map[string]string{"team": "a"})
	var unknown admission.Value[map[string]string]
	const teamA, teamB = ", namespaceSelector: {matchLabels: {team: a}}", ", namespaceSelector: {matchLabels: {team: b}}"
	for _, tc := range []struct {
		name         string
		binding      string
		labels       admission.Value[map[string]string]
		drop, accept bool // whether a policy of the mode is bound
	}{
		{"absent", "", known, true, true},
		{"the namespace", ", namespaces: [team-b, team-a]", unknown, true, true},
		{"another namespace", ", namespaces: [team-b]", known, false, false},
		{"labels", teamA, known, true, true},
		{"other labels", teamB, known, false, false},
		{"absent labels", teamA, admission.Absent[map[string]string](), false, false},
		{"unknown labels", teamB, unknown, true, false},
		{"an empty selector", ", namespaceSelector: {}", unknown, true, true},
		{"name or labels", ", namespaces: [team-b], namespaceSelector: {matchLabels: {team: a}}", known, true, true},
		{"labels or name", ", namespaces: [team-a], namespaceSelector: {matchLabels: {team: b}}", known, true, true},
		{"neither name nor labels", ", namespaces: [team-b], namespaceSelector: {matchLabels: {team: " +
			"b}}", known, false, false},
		{"In", ", namespaceSelector: {matchExpressions: [{key: team, operator: In, values: [b, a]}]}", known, true, true},
		{"NotIn", ", namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: " +
			"[a]}]}", known, false, false},
		{"NotIn without the label", ", namespaceSelector: {matchExpressions: [{key: tier, operator: NotIn, values: " +
			"[a]}]}", known, true, true},
		{"Exists", ", namespaceSelector: {matchExpressions: [{key: tier, operator: Exists}]}", known, false, false},
		{"DoesNotExist", ", namespaceSelector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}", known, true, true},
		{"all conditions must be met", ", namespaceSelector: {matchLabels: {team: a}, matchExpressions: [{key: tier, " +
			"operator: Exists}]}", known, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := allowed()
			pod.NamespaceLabels = tc.labels
			drop := load(t, file("drop", "{mode: Drop"+tc.binding+"}", noWeb))
			if d := drop.Judge(&pod, nil, options{}); d.Admitted == tc.drop {
				t.Errorf("bound as Drop: %v; want %v", !d.Admitted, tc.drop)
			}
			accept := load(t, file("accept", "{mode: Accept"+tc.binding+"}", "{}"), file("deny", "", noWeb))
			if d := accept.Judge(&pod, nil, options{}); d.Admitted != tc.accept || (d.AcceptedBy == "accept") != tc.accept {
				t.Errorf("bound as Accept: %v by %q; want %v", d.Admitted, d.AcceptedBy, tc.accept)
			}
		})
	}
}

// A message without a namespace is bound by every Drop policy and by no Accept policy that names namespaces.
func TestUnknownNamespace(t *testing.T) {
	pod := allowed()
	pod.Namespace = ""
	const no = noWeb
	if d := load(t, file("drop", "{namespaces: [team-b]}", no)).Judge(&pod, nil, options{From: atNode}); d.Admitted {
		t.Error("a Drop policy is not bound to an unknown namespace")
	}
	if d := load(t, file("accept", "{mode: Accept, namespaces: [team-b]}", "{}"), file("drop", "", no)).Judge(&pod, nil,
		options{}); d.Admitted {
		t.Error("an Accept policy is bound to an unknown namespace")
	}
}

// An Accept policy matches the whole pod where the other containers are known. At a node that does not know them, two
// containers can be accepted by two policies of which neither matches the pod. Drop policies are compared with the
// container that is created.
// Shows: 003-05
func TestAcceptIsForTheWholePod(t *testing.T) {
	of := func(path string) string {
		return "{spec: {containers: [{image: [{image: {whitelist: [" + path + "]}}]}]}}"
	}
	set := load(t, file("a", "{mode: Accept}", of("team/a")), file("b", "{mode: Accept}", of("team/b")),
		file("drop", "", noWeb))
	pod, a, b := allowed(), container("a"), container("b")
	a.Image, b.Image = admission.Set("repo.test/team/a:1"), admission.Set("repo.test/team/b:1")
	webhook := options{From: restriction.Admission}
	beside := func(other admission.Container) options { return options{From: withPods, Others: list{other}} }
	for _, tc := range []struct {
		name       string
		containers []admission.Container
		o          restriction.Options
		accepted   string
	}{
		{"the webhook", list{a, b}, webhook, ""},
		{"the webhook, one container", list{a}, webhook, "a"},
		{"the pod source, a", list{a}, beside(b), ""},
		{"the pod source, b", list{b}, beside(a), ""},
		{"the pod source, equal containers", list{b}, beside(b), "b"},
		{"without the pod source, a", list{a}, options{From: atNode}, "a"},
		{"without the pod source, b", list{b}, options{From: atNode}, "b"},
	} {
		if d := set.Judge(&pod, tc.containers, tc.o); d.AcceptedBy != tc.accepted || d.Admitted != (tc.accepted != "") {
			t.Errorf("%s: admitted %v by %q; want by %q", tc.name, d.Admitted, d.AcceptedBy, tc.accepted)
		}
	}
	drop := load(t, file("drop", "", of("team/a")))
	if d := drop.Judge(&pod, list{a}, options{From: withPods, Others: list{b}}); !d.Admitted {
		t.Errorf("violations %v of another container", d.Violations)
	}
}

// Shows: 003-04, 003-05, 003-06
func TestCombination(t *testing.T) {
	const no, yes = noWeb, "{metadata: {name: {whitelist: [web]}}}"
	audit := func(f restriction.File) restriction.File {
		f.Data = []byte(strings.Replace(string(f.Data), "{name: "+f.Name[:len(f.Name)-5]+"}",
			"{name: "+f.Name[:len(f.Name)-5]+", annotations: {policy.pullgate.dev/mode: Audit}}", 1))
		return f
	}
	accept := func(name, spec string) restriction.File { return file(name, "{mode: Accept}", spec) }
	drop := func(name, spec string) restriction.File { return file(name, "", spec) }
	for _, tc := range []struct {
		name    string
		files   []restriction.File
		admit   bool
		reports []string // policies with violations
	}{
		{"no policy", nil, true, nil},
		{"all Drop policies match", []restriction.File{drop("a", yes), drop("b", yes)}, true, nil},
		{"one Drop policy does not", []restriction.File{drop("a", yes), drop("b", no)}, false, []string{"b"}},
		{"every violated policy is " +
			"named", []restriction.File{drop("c", no), drop("a", no), drop("b", yes)}, false, []string{"a", "c"}},
		{"any Accept policy is enough", []restriction.File{drop("a", no), accept("b", no), accept("c", yes)}, true, nil},
		{"no Accept policy matches", []restriction.File{drop("a", no), accept("b", no)}, false, []string{"a"}},
		{"an Accept policy alone denies no pod", []restriction.File{accept("b", no)}, true, nil},
		{"audit reports", []restriction.File{audit(drop("a", no))}, true, []string{"a"}},
		{"audit beside enforcement", []restriction.File{audit(drop("a", no)), drop("b", no)}, false, []string{"a", "b"}},
		{"an audited Accept does not " +
			"admit", []restriction.File{audit(accept("a", yes)), drop("b", no)}, false, []string{"b"}},
		{"an audited Accept meets audit", []restriction.File{audit(accept("a", yes)), audit(drop("b", no))}, true, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := allowed()
			d := load(t, tc.files...).Judge(&pod, list{container("web")}, options{})
			var reports []string
			for _, v := range d.Violations {
				reports = append(reports, v.Policy)
			}
			if d.Admitted != tc.admit || !slices.Equal(reports, tc.reports) {
				t.Errorf("Judge = %v with violations of %q; want %v, %q", d.Admitted, reports, tc.admit, tc.reports)
			}
		})
	}
	var none *restriction.Set
	pod := allowed()
	if d := none.Judge(&pod, nil, options{}); !d.Admitted || none.Len() != 0 || none.Unjudged(atNode) != nil ||
		none.Restricted() != nil {
		t.Errorf("a nil Set judges %+v; want the pod admitted and nothing else", d)
	}
	if (restriction.Decision{}).Admitted {
		t.Error("the zero Decision admits")
	}
}

func TestUnjudgedNamesPolicyAndPath(t *testing.T) {
	s := load(t, file("b", "{namespaceSelector: {matchLabels: {a: b}}}",
		"{spec: {restartPolicy: {whitelist: [Always]}, volumes: {forbidEmpty: true, hostPath: {type: {requireNil: true}}}}}"),
		file("a", "{namespaceSelector: {}}", "{spec: {initContainers: [{imagePullPolicy: {whitelist: [Always]}, "+
			"securityContext: {privileged: {allowNil: false, require: false}, runAsUser: {allowNil: false}}}]}}"))
	for from, want := range map[restriction.Source][]restriction.PolicyField{
		atNode: {
			{Policy: "a", Path: "spec.spec.initContainers[0].imagePullPolicy"},
			{Policy: "a", Path: "spec.spec.initContainers[0].securityContext.privileged (whether it is set)"},
			{Policy: "b", Path: "binding.namespaceSelector"},
			{Policy: "b", Path: "spec.spec.restartPolicy"},
			{Policy: "b", Path: "spec.spec.volumes[0] (whether it is set)"},
			{Policy: "b", Path: "spec.spec.volumes[0].hostPath.type"},
		},
		withPods:              {{Policy: "b", Path: "binding.namespaceSelector"}},
		restriction.Admission: nil,
	} {
		if got := s.Unjudged(from); !slices.Equal(got, want) {
			t.Errorf("Unjudged(%d) = %v; want %v", from, got, want)
		}
	}
	if got := s.Restricted(); !slices.Contains(got, "spec.spec.containers[].securityContext.runAsUser") ||
		slices.Contains(got, "spec.spec.dnsPolicy") {
		t.Errorf("Restricted = %q; want the fields of the policies and no others", got)
	}
}

// The table has the fields that policies can restrict, and no others.
// Shows: 003-10, 003-12
func TestTableOfFieldsIsComplete(t *testing.T) {
	security := "{privileged: {}, runAsUser: {}, runAsGroup: {}, runAsNonRoot: {}, readOnlyRootFilesystem: {}, " +
		"allowPrivilegeEscalation: {}, " +
		"capabilities: {add: {}, drop: {}}, seLinuxOptions: {user: {}, role: {}, type: {}, level: {}}}"
	volume := "{forbidEmpty: true, volumeType: {}, hostPath: {path: {}, type: {}}, mount: {readOnly: {}, " +
		"mountPropagation: {}}}"
	s := load(t, file("all", "{namespaceSelector: {matchLabels: {a: b}}}",
		"{metadata: {name: {}, labels: {}, annotations: {}}, spec: {"+
			"restartPolicy: {}, terminationGracePeriodSeconds: {}, activeDeadlineSeconds: {}, dnsPolicy: {}, nodeSelector: {}, "+
			"automountServiceAccountToken: {}, "+
			"securityContext: {hostNetwork: {}, hostPID: {}, hostIPC: {}, shareProcessNamespace: {}, supplementalGroups: {}, "+
			"fsGroup: {}}, "+
			"volumes: "+volume+", containers: [{image: [{registry: {}, image: {}, tag: {}}], imagePullPolicy: {}, "+
			"securityContext: "+security+"}]}}"))
	var all []string
	for _, f := range restriction.Fields() {
		all = append(all, f.Path)
	}
	slices.Sort(all)
	if diff := cmp.Diff(all, s.Restricted()); diff != "" {
		t.Errorf("a policy with every field does not restrict what Fields lists (-Fields +policy):\n%s", diff)
	}
}

// A field of the view with the name of a field in the table is the one that the table reads.
// Shows: 003-25, 003-26, 003-27
func TestFieldsReadWhatTheirNamesSay(t *testing.T) {
	named := 0
	for _, f := range restriction.Fields() {
		pod, c := allowed(), container("web")
		last := f.Path[strings.LastIndex(f.Path, ".")+1:]
		view := reflect.ValueOf(&pod).Elem()
		if strings.HasPrefix(f.Path, "spec.spec.containers[]") {
			view = reflect.ValueOf(&c).Elem()
		}
		own := view.FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, last) })
		if !own.IsValid() || strings.HasSuffix(f.Path, "fsGroup") || strings.HasSuffix(f.Path, "supplementalGroups") {
			continue
		}
		named++
		own.SetZero() // all others have values
		keptPod, kept := restriction.Keep(&pod, list{c}, []string{f.Path})
		if !reflect.ValueOf(keptPod).IsZero() || !reflect.ValueOf(kept[0]).IsZero() {
			t.Errorf("%s keeps another field: %+v, %+v", f.Path, keptPod, kept[0])
		}
	}
	if named < 20 {
		t.Errorf("%d fields have the names of fields of the view; want at least 20", named)
	}
}

func TestPresetsJudge(t *testing.T) {
	if got, want := restriction.Presets(), []string{"baseline", "restricted", "runtime-sockets"}; !slices.Equal(got,
		want) {
		t.Fatalf("Presets = %q; want %q", got, want)
	}
	if _, err := restriction.Preset("root"); err == nil ||
		!strings.Contains(err.Error(), "there are baseline, restricted, runtime-sockets") {
		t.Errorf("Preset(root) = %v; want the names that there are", err)
	}
	pod := allowed()
	for name, admitted := range map[string]string{"baseline": "", "restricted": "", "runtime-sockets": "/var/log/pods"} {
		data, err := restriction.Preset(name)
		must(t, err)
		s := load(t, restriction.File{Name: name, Data: data})
		unjudged := s.Unjudged(atNode)
		if want := map[string]int{"restricted": 1}[name]; len(unjudged) != want { // whether runAsNonRoot is set
			t.Errorf("%s: the node does not judge %v; want %d fields", name, unjudged, want)
		}
		for _, path := range []string{
			"", "/var/run/containerd/containerd.sock", "/run/k0s/containerd.sock",
			"/var/snap/microk8s/common/run/containerd.sock", "/var/log/pods",
		} {
			c := container("web")
			if path != "" {
				c.Mounts = set([]admission.Mount{hostPath(path)})
			}
			if d := s.Judge(&pod, list{c}, options{}); d.Admitted != (path == "" || path == admitted) {
				t.Errorf("%s: a container with %q is admitted: %v, %v", name, path, d.Admitted, d.Violations)
			}
		}
	}
}

// A tenant chooses the number and the size of annotations and mounts; the cost stays small and the report short.
func TestLargePods(t *testing.T) {
	s := policy(t, "{metadata: {annotations: {keyWhitelist: [a, b], values: {a: {whitelist: [x]}}}}, spec: {volumes: "+
		"[{hostPath: {path: {whitelist: [/a]}}}]}}")
	pod, c := allowed(), container("web")
	many := map[string]string{}
	for i := range 10_000 {
		many[strings.Repeat("k", 20)+string(rune('a'+i%26))+strings.Repeat("i", i%50)+string(rune(i+256))] = "v"
	}
	pod.Annotations = set(many)
	if d := s.Judge(&pod, list{c}, options{}); d.Admitted || len(d.Violations[0].String()) > 500 {
		t.Errorf("Judge of 10,000 annotations = %+v; want a short violation", d)
	}
	pod.Annotations = set(map[string]string{"a": strings.Repeat("v", 256<<10)})
	if d := s.Judge(&pod, list{c}, options{}); d.Admitted || len(d.Violations[0].String()) > 500 {
		t.Errorf("Judge of 256 KiB of annotations = %d violations; want a short one", len(d.Violations))
	}
	pod.Annotations = set(map[string]string{})
	var mounts []admission.Mount
	for i := range 20_000 {
		m := hostPath("/a/" + strings.Repeat("x", i%300) + string(rune(i+256)))
		mounts = append(mounts, m)
	}
	c.Mounts = set(append(mounts, hostPath("/b")))
	if d := s.Judge(&pod, list{c}, options{}); d.Admitted || len(d.Violations) != 1 {
		t.Errorf("Judge of 20,000 mounts = %d violations; want the one that is below no allowed folder", len(d.Violations))
	}
}

func TestPolicies(t *testing.T) {
	audit := file("audit", "{mode: Accept, namespaces: [a, b]}", "{}")
	audit.Data = []byte(strings.Replace(string(audit.Data), "{name: audit}",
		"{name: audit, annotations: {policy.pullgate.dev/mode: Audit}}", 1))
	set := load(t, file("selected", "{namespaceSelector: {matchLabels: {z: '1', a: '2'}, matchExpressions: [{key: b, "+
		"operator: In, values: [v, w]}, "+
		"{key: c, operator: NotIn, values: [x]}, {key: d, operator: Exists}, {key: e, operator: DoesNotExist}]}}", "{}"),
		audit, file("everywhere", "", "{}"), file("empty", "{namespaces: [a], namespaceSelector: {}}", "{}"))
	want := []restriction.Summary{
		{Name: "audit", Mode: restriction.BindingModeAccept, Audit: true, Namespaces: []string{"a", "b"}},
		{Name: "empty", Mode: restriction.BindingModeDrop, Everywhere: true, Namespaces: []string{"a"}},
		{Name: "everywhere", Mode: restriction.BindingModeDrop, Everywhere: true},
		{Name: "selected", Mode: restriction.BindingModeDrop, Selector: "a=2,b in (v,w),c notin (x),d,!e,z=1"},
	}
	testkit.Equal(t, "Policies", set.Policies(), want)
	if all := (*restriction.Set)(nil).Policies(); all != nil {
		t.Errorf("a nil Set has %v", all)
	}
}

// The report of one policy does not change what another one with an equal part answers.
func TestReportsAreIndependent(t *testing.T) {
	const lists = "containers: [{securityContext: {privileged: {require: false}}}], initContainers: [{securityContext: " +
		"{privileged: {require: true}}}]"
	set := load(t, file("a", "", "{spec: {securityContext: {hostNetwork: {require: true}}, "+lists+"}}"),
		file("b", "", "{spec: {"+lists+"}}"))
	pod, c := allowed(), container("web")
	c.Kind, c.Privileged = admission.Value[admission.Kind]{}, admission.Set(false) // matches one list only
	d := set.Judge(&pod, list{c}, options{From: withPods, AssumeUnknown: true})
	for _, v := range d.Violations {
		if v.Policy == "b" {
			t.Errorf("%v; want no violation of b", v)
		}
	}
	if d.Admitted {
		t.Error("admitted; want a to deny")
	}
}

// A tenant chooses the number of mounts and their paths. Neither makes a decision or a message large.
func TestViolationsAreBounded(t *testing.T) {
	const policies, most = 3, 100
	var files []restriction.File
	for i := range policies {
		files = append(files, file(fmt.Sprintf("p%d", i), "",
			fmt.Sprintf("{spec: {volumes: [{hostPath: {path: {blacklist: [/a, /p%d]}}}, {volumeType: {whitelist: [secret]}}]}}",
				i)))
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
	d := load(t, files...).Judge(&pod, list{c}, options{From: atNode})
	if d.Admitted || len(d.Violations) != policies*most {
		t.Fatalf("Judge = %v with %d violations; want a denial with %d for each of %d policies", d.Admitted,
			len(d.Violations), most, policies)
	}
	if text := d.Violations[0].String(); len(text) > 1000 || strings.Contains(text, "\n") {
		t.Errorf("a message of %d bytes: %q", len(text), text)
	}
}
