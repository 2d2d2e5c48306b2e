package webhook_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// BenchmarkAdmissionReview judges by 100 restrictions. The budget on 2 cores is 1,000 reviews per second, with a p99 of
// 10 ms.
func BenchmarkAdmissionReview(b *testing.B) {
	data, err := restriction.Preset("restricted")
	must(b, err)
	var files []restriction.File
	for i := range 100 {
		p, err := restriction.Parse(data)
		must(b, err)
		p.Metadata.Name = fmt.Sprintf("policy-%d", i)
		p.Spec.Spec.Containers[0].Image = []restriction.ImageRestriction{{Registry: &restriction.StringRestriction{Whitelist: []string{fmt.Sprintf("r%d.test", i), "good.test"}}}}
		text, err := yaml.Marshal(p)
		must(b, err)
		files = append(files, restriction.File{Name: p.Metadata.Name, Data: text})
	}
	h, err := webhook.New(webhook.Options{Chain: chainOf(b, files)})
	must(b, err)
	w := &world{Handler: h}
	container := func(name string) string {
		return "{name: " + name + ", image: good.test/a, resources: {limits: {cpu: 1, memory: 1Gi}}, env: [{name: A, value: b}, {name: C, valueFrom: {fieldRef: {fieldPath: metadata.name}}}], " +
			"securityContext: {allowPrivilegeEscalation: false, runAsNonRoot: true, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}, " +
			"volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w, readOnly: true}], readinessProbe: {httpGet: {path: /, port: 80}}}"
	}
	spec := "{securityContext: {runAsNonRoot: true, runAsUser: 1000}, containers: [" + container("a") + ", " + container("b") + "], initContainers: [" + container("i") + "], volumes: [{name: v, emptyDir: {}}, {name: w, secret: {secretName: x}}]}"
	for _, resource := range []string{"pods", "deployments.apps"} {
		q := wrap(spec)[resource]
		create := q.body(b)
		q.old = wrap(spec[:1] + "restartPolicy: Never, " + spec[1:])[resource].object
		for operation, body := range map[string][]byte{"create": create, "update": q.body(b)} {
			b.Run(resource+"/"+operation, func(b *testing.B) {
				var mu sync.Mutex
				var took []time.Duration
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					var own []time.Duration
					for pb.Next() {
						began := time.Now()
						if answer := w.post(b.Context(), webhook.ValidatePath+"?timeout=10s", body); !decode(b, answer).Allowed {
							b.Error(answer.Body)
						}
						own = append(own, time.Since(began))
					}
					mu.Lock()
					defer mu.Unlock()
					took = append(took, own...)
				})
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
				b.ReportMetric(float64(len(body)), "bytes")
			})
		}
	}
}
