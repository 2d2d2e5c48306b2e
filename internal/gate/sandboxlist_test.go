package gate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/podindex"
	"github.com/pullgate/pullgate/pkg/criproxy"
)

// A list is read as the generated code reads it, whatever its bytes are.
func FuzzSandboxesAreReadAsDecoded(f *testing.F) {
	seed := func(r *runtimeapi.ListPodSandboxResponse) []byte {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		return b
	}
	whole := seed(&runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{
		{
			Id: "a", State: 1, CreatedAt: 7, RuntimeHandler: "h", Labels: map[string]string{"k": "v"}, Metadata: &runtimeapi.PodSandboxMetadata{Name: "n", Uid: "u", Namespace: "s", Attempt: 3},
			Annotations: map[string]string{podindex.SeenAnnotation: "now", podindex.SourceAnnotation: "file", "other": "x", "": ""},
		},
		{},
		{Id: "b", Annotations: map[string]string{podindex.SeenAnnotation: "then", podindex.SourceAnnotation: "api"}},
	}})
	f.Add(append(whole, whole...))
	f.Add([]byte("\x0a\x0e\x0a\x01a\x12\x03\x0a\x01n\x12\x04\x12\x02\xff\xfe"))          // metadata twice, not UTF-8
	f.Add([]byte("\x0a\x04\x32\x02\x12\x00\x0a\x03\x0a\x01\xff\xfa\x3e\x03new\x08\x01")) // empty entry, unknown fields
	f.Fuzz(func(t *testing.T, answer []byte) {
		var decoded runtimeapi.ListPodSandboxResponse
		want := criproxy.DecodeAnswer(answer, &decoded)
		got, err := readSandboxes(answer)
		if want != nil {
			return // what cannot be decoded may be read in part: it has come from the runtime, and the list is the same either way
		}
		if diff := cmp.Diff(sandboxes(&decoded), got, cmp.Transformer("list", func(l []podindex.Sandbox) []podindex.Sandbox { return append([]podindex.Sandbox{}, l...) })); err != nil || diff != "" {
			t.Errorf("%x: %v\n%s", answer, err, diff)
		}
	})
}

func BenchmarkReadSandboxes(b *testing.B) {
	var r runtimeapi.ListPodSandboxResponse
	for range 100 {
		r.Items = append(r.Items, &runtimeapi.PodSandbox{
			Id: "a", Metadata: &runtimeapi.PodSandboxMetadata{Name: "n", Uid: "u", Namespace: "s"}, Labels: map[string]string{"a": "1", "b": "2", "c": "3"},
			Annotations: map[string]string{podindex.SeenAnnotation: "now", podindex.SourceAnnotation: "file", "other": "x"},
		})
	}
	answer, err := proto.Marshal(&r)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("fields", func(b *testing.B) {
		for b.Loop() {
			if list, err := readSandboxes(answer); err != nil || len(list) != 100 {
				b.Fatal(err)
			}
		}
	})
	b.Run("decoded", func(b *testing.B) {
		for b.Loop() {
			var r runtimeapi.ListPodSandboxResponse
			if err := criproxy.DecodeAnswer(answer, &r); err != nil || len(sandboxes(&r)) != 100 {
				b.Fatal(err)
			}
		}
	})
}
