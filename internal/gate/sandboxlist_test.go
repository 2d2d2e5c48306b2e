package gate

import (
	"fmt"
	"slices"
	"testing"
	"unicode/utf8"

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
		views, ok := viewSandboxes(nil, answer)
		var decoded runtimeapi.ListPodSandboxResponse
		if criproxy.DecodeAnswer(answer, &decoded) != nil {
			return // what cannot be decoded equals no index but by what can be read of it
		}
		if !ok {
			t.Fatalf("%x cannot be read, and is decoded", answer)
		}
		index := podindex.New()
		list := sandboxes(&decoded)
		if _, ok := index.Reconcile(index.Now(), list); !ok {
			t.Fatal("not reconciled")
		}
		// Without a sandbox that is listed twice, and with text that is UTF-8, the index equals its own list.
		ids := map[string]bool{}
		plain := utf8.Valid(answer)
		for _, s := range list {
			plain = plain && !ids[s.ID]
			ids[s.ID] = true
		}
		if plain && !index.Equals(views) {
			t.Errorf("%x is another list than what is decoded of it: %+v", answer, list)
		}
		// No other index equals it.
		for _, s := range list {
			other := s
			other.Pod.UID += "x"
			index.Add(other)
			index.Reconcile(index.Now(), append(slices.Clip(list), other))
			if index.Equals(views) {
				t.Errorf("%x equals an index with %+v", answer, other)
			}
		}
	})
}

func BenchmarkListThatIsEqual(b *testing.B) {
	var r runtimeapi.ListPodSandboxResponse
	for i := range 100 {
		r.Items = append(r.Items, &runtimeapi.PodSandbox{
			Id: fmt.Sprint(i), Metadata: &runtimeapi.PodSandboxMetadata{Name: "n", Uid: "u", Namespace: "s"}, Labels: map[string]string{"a": "1", "b": "2", "c": "3"},
			Annotations: map[string]string{podindex.SeenAnnotation: "now", podindex.SourceAnnotation: "file", "other": "x"},
		})
	}
	answer, err := proto.Marshal(&r)
	if err != nil {
		b.Fatal(err)
	}
	g := &Gate{c: Config{Pods: podindex.New()}}
	g.c.Pods.Reconcile(g.c.Pods.Now(), sandboxes(&r))
	b.Run("compared", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !g.equalsIndex(answer) {
				b.Fatal("not equal")
			}
		}
	})
	b.Run("decoded", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var r runtimeapi.ListPodSandboxResponse
			if err := criproxy.DecodeAnswer(answer, &r); err != nil || len(sandboxes(&r)) != 100 {
				b.Fatal(err)
			}
		}
	})
}
