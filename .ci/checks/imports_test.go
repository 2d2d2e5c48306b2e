package checks_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/checks"
)

func TestImportsFollowLayersAndWalls(t *testing.T) {
	wrong, err := checks.Imports(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Error(w)
	}
}

func TestImportsFindsPlantedViolations(t *testing.T) {
	for _, tc := range []struct {
		from, to string // a folder or a file, and a package
		want     string // "" if the import is allowed
	}{
		{"internal/atomicfile", "pkg/credential", "mechanics import nothing"},
		{"internal/verification", "internal/config", "mechanics import nothing"},
		{"pkg/credential", "pkg/imageref", "no other package of this module but mechanics"},
		{"pkg/credential", "internal/atomicfile", ""},
		{"pkg/records", "pkg/policy", "policy judges"},
		{"pkg/records", "pkg/credential", ""},
		{"pkg/tracker", "internal/podindex", "tracker imports records"},
		{"pkg/tracker", "pkg/records", ""},
		{"pkg/criproxy", "pkg/tracker", "a proxy and nothing else"},
		{"pkg/admission", "pkg/policy", "admission combines answers"},
		{"pkg/admission", "pkg/imageref", ""},
		{"pkg/added", "pkg/policy", "a promise to other programs"},
		{"pkg/podview", "pkg/policy", "podview is a leaf"},
		{"pkg/podview/apiview", "pkg/podview", ""},
		{"pkg/podview/apiview", "k8s.io/api/core/v1", ""},
		{"pkg/restriction", "pkg/podview/apiview", "knows of no source"},
		{"pkg/restriction", "k8s.io/api/core/v1", "talked to in internal/podsource"},
		{"pkg/restriction", "pkg/podview", ""},
		{"pkg/restriction", "internal/strictyaml", ""},
		{"pkg/requirement", "pkg/policy", "it verifies nothing"},
		{"pkg/requirement/kyverno", "net/http", "it asks no server"},
		{"pkg/requirement/kyverno", "pkg/requirement", ""},
		{"pkg/requirement/cip", "internal/strictyaml", ""},
		{"internal/gate", "internal/metrics", "declares the interfaces of everything else"},
		{"internal/gate", "internal/podindex", ""},
		{"internal/gate", "pkg/tracker", ""},
		{"internal/config", "internal/daemon", "neither the daemon nor a command"},
		{"internal/cli", "pkg/policy", "imports nothing but that API"},
		{"internal/cli", "proto/pullgate/admin/v1", ""},
		{"internal/cli/output", "internal/cli", "output knows of no command"},
		{"internal/podfile", "pkg/restriction", "imports nothing that judges"},
		{"internal/podfile", "pkg/podview/apiview", ""},
		{"internal/podfile", "k8s.io/api/core/v1", ""},
		{"internal/policyd/webhook", "pkg/records", "imports the chain, views"},
		{"internal/policyd/webhook", "pkg/restriction", ""},
		{"internal/policyd/webhook", "internal/podfile", ""},
		{"internal/policyd/webhook", "k8s.io/client-go/rest", ""},
		{"internal/policyd/webhook", "k8s.io/api/core/v1", ""},
		{"internal/imagepolicy", "internal/policyd/review", "imports nothing that asks a backend"},
		{"internal/imagepolicy", "net/http", "has no client of them"},
		{"internal/imagepolicy", "internal/strictyaml", ""},
		{"internal/imagerule", "internal/policyd", "knows of no verifier"},
		{"internal/imagerule", "pkg/requirement", ""},
		{"internal/imagereview", "internal/gate", "knows of no gate"},
		{"internal/imagereview", "internal/policyd/review", "another process"},
		{"internal/imagereview", "internal/policyclient", ""},
		{"internal/policyd/review", "pkg/podview", "knows of no pod view"},
		{"internal/policyd/review", "internal/imagepolicy", ""},
		{"internal/policyd/review", "k8s.io/client-go/rest", ""},
		{"internal/policyd/webhook", "github.com/sigstore/sigstore-go/pkg/verify", "verified in internal/policyd/verify"},
		{"internal/policyd/verify/registry", "github.com/sigstore/sigstore-go/pkg/bundle", "verified in internal/policyd/verify"},
		{"internal/policyd/verify", "internal/policyfiles", "knows of no policy file"},
		{"internal/policyd/verify/registry", "pkg/requirement", "knows of no policy and no signature"},
		{"internal/policyd/verify/registry", "pkg/credential", ""},
		{"internal/policyd/verify/registry", "github.com/google/go-containerregistry/pkg/name", ""},
		{"internal/policyd/webhook", "github.com/google/go-containerregistry/pkg/name", "asked in internal/policyd/verify"},
		{"internal/daemon", "internal/policyd/review", "is another process"},
		{"internal/kubeletconf", "internal/config", "work where pullgated does not"},
		{"internal/nodeenable/configured", "internal/daemon", "nothing that does its work"},
		{"internal/nodeenable/configured", "internal/nodeenable", ""},
		{"internal/doctor", "pkg/records", "doctor looks from outside"},
		{"internal/doctor", "pkg/records/offline", ""},
		{"internal/daemon", "internal/decisionlog", ""},
		{"internal/daemon", "internal/policyd", "another process"},
		{"cmd/pullgated", "internal/policyd/metrics", "another process"},
		{"internal/gate", "internal/policyclient", "declares the interfaces of everything else"},
		{"internal/daemon", "internal/policyclient", ""},
		{"cmd/pullgate-policyd", "internal/policyd", ""},
		{"internal/policyd", "internal/daemon", "neither the daemon nor a command"},
		{"internal/policyd/metrics", "pkg/tracker", "nothing of pullgated"},
		{"internal/policyd/review", "google.golang.org/grpc", "gRPC stays at the edge"},
		{"internal/policyd/manifests", "pkg/admission/files", ""},
		{"internal/policyclient", "internal/policyd", "another process"},
		{"internal/policyclient", "internal/config", "the generated client and nothing else"},
		{"internal/policyclient", "proto/pullgate/policy/v1", ""},
		{"internal/sockets", "internal/config", "imports mechanics alone"},
		{"internal/sockets", "internal/atomicfile", ""},
		{"proto", "pkg/policy", "generated code imports nothing"},
		{"cmd/pullgated", "pkg/tracker", "commands are thin"},
		{"cmd/pullgated", "internal/daemon", ""},
		{"e2e", "pkg/records", "e2e is a black box"},
		{"e2e", "pkg/criproxy/criproxytest", ""},
		{"e2e/admission", "internal/podindex", "and import nothing else"},
		{"e2e/systemd", "internal/policyclient", ""},
		{"e2e/signatures", "internal/podindex", "and imports nothing else"},
		{"e2e/podsource", "internal/podindex", "and imports nothing else"},
		{"e2e/podsecurity", "internal/podindex", "and imports nothing else"},
		{"e2e/podviews", "internal/podindex", "and imports nothing else"},
		{"internal/daemon", "go.etcd.io/bbolt", "bbolt stays in records"},
		{"pkg/records", "go.etcd.io/bbolt", ""},
		{"pkg/tracker", "google.golang.org/grpc/codes", "gRPC stays at the edge"},
		{"pkg/criproxy", "google.golang.org/grpc", ""},
		{"internal/daemon", "k8s.io/cri-api/pkg/apis/runtime/v1", "CRI types stay in criproxy and gate"},
		{"pkg/criproxy", "k8s.io/cri-api/pkg/apis/runtime/v1", ""},
		{"internal/daemon", "k8s.io/client-go/rest", "talked to in internal/podsource"},
		{"internal/daemon", "k8s.io/api/core/v1", "talked to in internal/podsource"},
		{"internal/daemon", "k8s.io/apimachinery/pkg/types", "talked to in internal/podsource"},
		{"internal/daemon", "k8s.io/apimachinery/pkg/util/sets", ""},
		{"internal/podsource", "k8s.io/client-go/rest", ""},
		{"internal/gate/planted_test.go", "internal/metrics", "tests of gate"},
		{"internal/gate/planted_test.go", "internal/imagereview", ""},
		{"internal/doctor/planted_test.go", "internal/metrics", ""},
		{"internal/doctor/planted_test.go", "internal/policyd", "another process"},
		{"pkg/records/planted_test.go", "pkg/tracker", "policy judges"},
		{"pkg/policy/planted_test.go", "pkg/records", "tests of credential"},
		{"pkg/policy/planted_test.go", "pkg/credential", ""},
		{"pkg/policy/planted_test.go", "go.etcd.io/bbolt", ""},
		{"pkg/policy/planted_test.go", "github.com/sigstore/sigstore-go/pkg/verify", "verified in internal/policyd/verify"},
	} {
		file, to := tc.from, tc.to
		if !strings.HasSuffix(file, ".go") {
			file += "/planted/planted.go"
		}
		if first, _, _ := strings.Cut(to, "/"); first == "internal" || first == "pkg" || first == "proto" {
			to = "github.com/pullgate/pullgate/" + to
		}
		found, err := checks.Imports(tree(file, fmt.Sprintf("package planted\n\nimport _ %q\n", to)))
		if all := strings.Join(found, "\n"); err != nil || (all == "") != (tc.want == "") || !strings.Contains(all, tc.want) {
			t.Errorf("Imports of %s with an import of %s = %q, %v; want %q, nil", file, to, found, err, tc.want)
		}
	}
}
