package restriction_test

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A random generates policies and pods that are valid, small, and similar enough to match each other sometimes.
type random struct{ *rand.Rand }

func newRandom(seed uint64) random { return random{rand.New(rand.NewPCG(seed, 7))} }

func pick[T any](r random, from ...T) T { return from[r.IntN(len(from))] }

// mapping returns a mapping of fields, of which each is often absent.
func (r random) mapping(namesAndValues ...string) string {
	var fields []string
	for pair := range slices.Chunk(namesAndValues, 2) {
		if r.IntN(3) == 0 {
			fields = append(fields, pair[0]+": "+pair[1])
		}
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// nilable is mapping for a value that policies can forbid or require to be nil.
func (r random) nilable(namesAndValues ...string) string {
	return "{" + pick(r, "", "", "allowNil: false, ", "requireNil: true, ") + r.mapping(namesAndValues...)[1:]
}

func (r random) str(values ...string) string {
	return r.nilable("whitelist", "["+pick(r, values...)+", "+pick(r, values...)+"]", "blacklist",
		"["+pick(r, values...)+"]", "regex", "'"+pick(r, values...)+".*'")
}

func (r random) number() string {
	return r.nilable("ranges", "[{min: "+pick(r, "0", "1", "1000")+"}, {max: 0}]")
}

func (r random) boolean() string { return r.nilable("require", pick(r, "true", "false")) }

func (r random) texts(keys, values []string) string {
	return r.mapping("requireKeys", "["+pick(r, keys...)+"]", "keyWhitelist", "["+strings.Join(keys, ", ")+"]",
		"keyBlacklist", "["+pick(r, keys...)+"]", "values", "{"+pick(r, keys...)+": "+r.str(values...)+"}")
}

func (r random) container() string {
	caps := r.mapping("add", "{values: {whitelist: [CHOWN, NET_RAW]}}",
		"drop", "{requiredValues: ["+pick(r, "ALL", "KILL")+"]}")
	security := r.mapping("privileged", r.boolean(), "runAsUser", r.number(), "runAsNonRoot", r.boolean(),
		"readOnlyRootFilesystem", r.boolean(), "allowPrivilegeEscalation", r.boolean(), "capabilities", caps,
		"seLinuxOptions", "{type: "+r.str("container_t", "spc_t")+"}")
	image := "[{registry: " + r.str("docker.io", "registry.test") + ", tag: " + r.str("latest", "v1") + "}]"
	return r.mapping("image", image, "imagePullPolicy", r.str("Always", "Never"), "securityContext", security)
}

func (r random) spec() string {
	security := r.mapping("hostNetwork", r.boolean(), "hostPID", r.boolean(), "shareProcessNamespace", r.boolean(),
		"supplementalGroups", r.number(), "fsGroup", r.number())
	volume := r.mapping("volumeType", r.str("secret", "hostPath", "emptyDir"), "hostPath",
		"{path: {whitelist: ["+pick(r, "/a", "/a/b", "/")+"]}}", "mount", "{readOnly: "+r.boolean()+"}")
	pod := r.mapping("restartPolicy", r.str("Always", "Never"), "terminationGracePeriodSeconds", r.number(),
		"nodeSelector", r.texts([]string{"disk", "zone"}, []string{"ssd", "b"}), "securityContext", security,
		"containers", "["+r.container()+", "+r.container()+"]", "initContainers", "["+r.container()+"]",
		"volumes", pick(r, volume, "["+volume+", "+volume+"]"))
	labels := r.texts([]string{"app", "tier"}, []string{"web", "db"})
	return "{spec: " + pod + ", " + r.mapping("metadata", r.mapping("name", r.str("web", "db"), "labels", labels))[1:]
}

func (r random) file(name, mode string) restriction.File {
	return file(name, "{mode: "+mode+pick(r, "", ", namespaces: [team-a]", ", namespaceSelector: {matchLabels: {team: a}}",
		", namespaces: [team-b]")+"}", r.spec())
}

func value[T any](r random, from ...T) admission.Value[T] {
	switch r.IntN(8) {
	case 0:
		return admission.Value[T]{}
	case 1, 2:
		return admission.Absent[T]()
	case 3:
		return admission.Effective(pick(r, from...))
	default:
		return admission.Set(pick(r, from...))
	}
}

func (r random) pod() (admission.Pod, []admission.Container) {
	labels := []map[string]string{{}, {"app": "web"}, {"app": "db", "tier": "web"}, {"x": "y"}}
	p := admission.Pod{
		Namespace: "team-a", Name: pick(r, "web", "db"), Labels: value(r, labels...),
		NamespaceLabels: value(r, map[string]string{"team": "a"}, map[string]string{"team": "b"}),
		HostNetwork:     value(r, true, false), HostPID: value(r, true, false), ShareProcessNamespace: value(r, true, false),
		FSGroup: value[int64](r, 0, 5), SupplementalGroups: value(r, []int64{0}, []int64{5, 2000}),
		Groups:        value(r, []int64{0}, []int64{5}, nil),
		RestartPolicy: value(r, "Always", "Never"), TerminationGracePeriodSeconds: value[int64](r, 0, 30),
		NodeSelector: value(r, map[string]string{"disk": "ssd"}, nil),
		Volumes:      value(r, []admission.Volume{mount("", "secret").Volume}, nil),
	}
	// A source that knows which groups are which does not contradict itself.
	if fs, supplemental := p.FSGroup.State(), p.SupplementalGroups.State(); fs != admission.StateUnknown &&
		supplemental != admission.StateUnknown {
		groups, _ := p.SupplementalGroups.Effective()
		if g, set := p.FSGroup.Effective(); set {
			groups = append(slices.Clip(groups), g)
		}
		p.Groups = admission.Set(groups)
	} else if fs != supplemental {
		p.Groups = admission.Value[[]int64]{}
	}
	var containers []admission.Container
	for range r.IntN(3) {
		containers = append(containers, admission.Container{
			Name: "c", Kind: value(r, admission.KindContainer, admission.KindInit, admission.KindEphemeral),
			Image:           value(r, "busybox", "registry.test/a:v1", "sha256:12"),
			ImagePullPolicy: value(r, "Always", "Never"), Privileged: value(r, true, false),
			ReadOnlyRootFilesystem:   value(r, true, false),
			AllowPrivilegeEscalation: value(r, true, false), RunAsNonRoot: value(r, true, false),
			RunAsUser:        value[int64](r, 0, 1, 1000),
			CapabilitiesAdd:  value(r, []string{"CHOWN"}, nil),
			CapabilitiesDrop: value(r, []string{"ALL"}, []string{"KILL"}, nil),
			SELinux:          value(r, admission.SELinux{Type: "spc_t"}, admission.SELinux{}),
			Mounts: value(r, []admission.Mount{hostPath("/a"), mount("/b", "secret")},
				[]admission.Mount{hostPath("/a/b/c"), hostPath("/a/../b"), {}}, nil),
		})
	}
	return p, containers
}

// rounds returns the seeds of each property, fewer under the race detector: a property has a single goroutine, and
// `make race` runs all of them without it.
func rounds(n uint64) uint64 {
	if testkit.Raced {
		return n / 10
	}
	return n
}

// Shows: 003-05
func TestPropertiesOfSets(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for seed := range rounds(600) {
		r := newRandom(seed)
		var files []restriction.File
		for i := range r.IntN(4) {
			files = append(files, r.file(string(rune('b'+i)), pick(r, "Drop", "Drop", "Accept")))
		}
		pod, containers := r.pod()
		options := options{From: pick(r, restriction.Admission, atNode, withPods), Refuse: r.IntN(2) == 0}
		judge := func(files []restriction.File) restriction.Decision {
			return load(t, files...).Judge(&pod, containers, options)
		}
		want := judge(files)

		shuffled := append([]restriction.File(nil), files...)
		r.Shuffle(len(shuffled), func(i, k int) { shuffled[i], shuffled[k] = shuffled[k], shuffled[i] })
		if got := judge(shuffled); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: the order of policies changes %+v to %+v", seed, want, got)
		}
		if got := judge(append(shuffled, r.file("a", "Drop"))); got.Admitted && !want.Admitted {
			t.Fatalf("seed %d: one more Drop policy admits a pod that was denied: %+v", seed, want)
		}
		if got := judge(append(shuffled, r.file("a", "Accept"))); !got.Admitted && want.Admitted {
			t.Fatalf("seed %d: one more Accept policy denies a pod that was admitted: %+v", seed, got)
		}
		if got := judge(nil); !got.Admitted {
			t.Fatalf("seed %d: no policy denies", seed)
		}
		if !want.Admitted && len(want.Violations) == 0 {
			t.Fatalf("seed %d: a pod is denied without a reason", seed)
		}
		// Less knowledge never helps a pod against Drop policies whose fields the source carries.
		if options.From == restriction.Admission && !want.Admitted {
			blind := pod
			for name := range strings.FieldsSeq("Labels RestartPolicy HostNetwork FSGroup SupplementalGroups Groups") {
				reflect.ValueOf(&blind).Elem().FieldByName(name).SetZero()
			}
			if got := load(t, files...).Judge(&blind, containers, options); got.Admitted {
				t.Fatalf("seed %d: unknown fields admit a pod that was denied: %+v", seed, want)
			}
		}
	}
}

// What is admitted with unknown fields is admitted whatever their values are, and so is what is denied although
// AssumeUnknown is set.
func TestUnknownFieldsBoundTheAnswer(t *testing.T) {
	for seed := range rounds(600) {
		r := newRandom(seed)
		set := load(t, r.file("a", "Drop"), r.file("b", pick(r, "Drop", "Accept")))
		pod, containers := r.pod()
		want := set.Judge(&pod, containers, options{}).Admitted
		blind, blindContainers := pod, append([]admission.Container(nil), containers...)
		r.forget(reflect.ValueOf(&blind).Elem())
		blind.NamespaceLabels = pod.NamespaceLabels // decide what is bound
		for i := range blindContainers {
			r.forget(reflect.ValueOf(&blindContainers[i]).Elem())
		}
		least := set.Judge(&blind, blindContainers, options{}).Admitted
		most := set.Judge(&blind, blindContainers, options{AssumeUnknown: true}).Admitted
		if least && !want || want && !most {
			t.Fatalf("seed %d: admitted with unknown fields: %v, with all values: %v, under the most favorable values: %v", seed,
				least, want, most)
		}
	}
}

// forget makes some of the fields of a pod or of a container unknown.
func (r random) forget(view reflect.Value) {
	for _, f := range view.Fields() {
		if f.Kind() == reflect.Struct && r.IntN(3) == 0 {
			f.SetZero()
		}
	}
}

func FuzzPolicyFile(f *testing.F) {
	for _, name := range []string{"proposal-restricted", "proposal-kube-system", "proposal-kube-system-malformed"} {
		f.Add(read(f, "testdata/"+name+".yaml"))
	}
	for seed := range uint64(20) {
		f.Add(newRandom(seed).file("a", "Accept").Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := restriction.Load([]restriction.File{{Name: "f", Data: data}})
		if err != nil {
			return
		}
		pod, containers := newRandom(1).pod()
		for _, from := range []restriction.Source{restriction.Admission, atNode, withPods} {
			if d := s.Judge(&pod, containers, options{From: from}); !d.Admitted && len(d.Violations) == 0 {
				t.Error("a pod is denied without a reason")
			}
		}
	})
}

// A path that is allowed is below the folder in every spelling that a kernel resolves to it without symbolic links.
// Shows: 003-21
func FuzzHostPath(f *testing.F) {
	for _, p := range []string{"/a/b", "/a/../b", "//a", "/a/./b/", "/ab", "a", "", "/a/..", "/a\x00"} {
		f.Add(p)
	}
	allow := policy(f, "{spec: {volumes: [{hostPath: {path: {whitelist: [/a]}}}]}}")
	deny := policy(f, "{spec: {volumes: [{hostPath: {path: {blacklist: [/a]}}}]}}")
	pod, c := allowed(), container("web")
	f.Fuzz(func(t *testing.T, p string) {
		c := c
		c.Mounts = admission.Set([]admission.Mount{hostPath(p)})
		inside := allow.Judge(&pod, list{c}, options{}).Admitted
		outside := deny.Judge(&pod, list{c}, options{}).Admitted
		segments := strings.FieldsFunc(p, func(r rune) bool { return r == '/' })
		var clean []string
		for _, s := range segments {
			if s == ".." {
				if inside || outside {
					t.Errorf("%q has .. in it and is allowed", p)
				}
				return
			}
			if s != "." {
				clean = append(clean, s)
			}
		}
		below := strings.HasPrefix(p, "/") && len(clean) > 0 && clean[0] == "a"
		if inside != below {
			t.Errorf("%q is below /a: %v; want %v", p, inside, below)
		}
		if want := strings.HasPrefix(p, "/") && len(clean) > 0 && !below; outside != want {
			t.Errorf("%q is neither /a, nor below nor above it: %v; want %v", p, outside, want)
		}
	})
}
