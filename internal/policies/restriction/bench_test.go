package restriction_test

import (
	"fmt"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// many returns n policies that bind every namespace. Each is the preset restricted with restrictions of labels and
// images. distinct says that no two have an equal list of containers or volumes.
func many(tb testing.TB, n int, distinct bool) []restriction.File {
	tb.Helper()
	data, err := restriction.Preset("restricted")
	must(tb, err)
	files := make([]restriction.File, n)
	for i := range files {
		p, err := restriction.Parse(data)
		must(tb, err)
		p.Metadata.Name = fmt.Sprintf("policy-%d", i)
		labels := &restriction.StringMapRestriction{RequiredKeys: []string{"team"}}
		p.Spec.Metadata = &restriction.ObjectMetaRestriction{Labels: labels}
		if i%10 == 0 {
			p.Spec.Metadata.Labels.Values = map[string]restriction.StringRestriction{"team": {Regex: "team-[a-z]+"}}
		}
		own := "registry.test"
		if distinct {
			own = fmt.Sprintf("registry-%d.test", i)
			p.Spec.Spec.Volumes[0].VolumeType.Whitelist = append(p.Spec.Spec.Volumes[0].VolumeType.Whitelist, own)
		}
		registry := &restriction.StringRestriction{Whitelist: []string{own, "registry.test"}}
		p.Spec.Spec.Containers[0].Image = []restriction.ImageRestriction{{Registry: registry}}
		text, err := yaml.Marshal(p)
		must(tb, err)
		files[i] = restriction.File{Name: p.Metadata.Name + ".yaml", Data: text}
	}
	return files
}

// large returns a pod, and n containers of it with m mounts each, that the policies of many admit.
func large(n, m int) (admission.Pod, []admission.Container) {
	pod := allowed()
	var containers []admission.Container
	for i := range n {
		c := container(fmt.Sprintf("c%d", i))
		var mounts []admission.Mount
		for k := range m {
			volume := []string{"configMap", "secret", "emptyDir", "projected", "persistentVolumeClaim"}[k%5]
			mounts = append(mounts, mount(fmt.Sprintf("/mnt/%d", k), volume))
		}
		c.Mounts = admission.Set(mounts)
		containers = append(containers, c)
	}
	return pod, containers
}

// The budget of one judged call is 50 µs with 100 policies.
func BenchmarkJudgeContainer(b *testing.B) {
	for _, distinct := range []bool{false, true} {
		b.Run(fmt.Sprintf("distinct=%v", distinct), func(b *testing.B) {
			set := load(b, many(b, 100, distinct)...)
			pod, containers := large(10, 30)
			options := options{From: atNode}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if d := set.Judge(&pod, containers[i%10:i%10+1], options); !d.Admitted {
					b.Fatal(d.Violations)
				}
			}
		})
	}
}

// The budget is 200 ms for 1,000 policies.
func BenchmarkLoad(b *testing.B) {
	files := many(b, 1000, false)
	for b.Loop() {
		load(b, files...)
	}
}
