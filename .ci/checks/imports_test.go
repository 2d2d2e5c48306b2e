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

// The reader of the table is held to some imports that it must find, and to others that it must not.
func TestImportsFindsForbiddenImports(t *testing.T) {
	for _, tc := range []struct {
		from, to string // a folder or a file, and a package
		want     string // "" if the import is allowed
	}{
		{"internal/mechanics/hint", "github.com/pullgate/pullgate/pkg/credential", "mechanics know nothing"},
		{"internal/policies/policyd", "github.com/pullgate/pullgate/internal/records", "keeps no records"},
		{"internal/policies/policyclient", "github.com/pullgate/pullgate/internal/records", ""},
		{"internal/gate", "github.com/pullgate/pullgate/internal/operator/metrics", "declares the interfaces"},
		{"internal/gate/planted_test.go", "github.com/pullgate/pullgate/internal/operator/metrics", ""},
		{"internal/daemon", "k8s.io/apimachinery/pkg/types", "stay where it is asked"},
		{"internal/daemon", "k8s.io/apimachinery/pkg/util/sets", ""},
		{"internal/policies/policyd/review", "google.golang.org/grpc", "at the edge"},
		{"internal/policies/policyd", "google.golang.org/grpc", ""},
		{"pkg/policy/planted_test.go", "go.etcd.io/bbolt", ""},
	} {
		file := tc.from
		if !strings.HasSuffix(file, ".go") {
			file += "/planted/planted.go"
			if tc.from == "internal/policies/policyd" && tc.want == "" {
				file = tc.from + "/planted.go"
			}
		}
		found, err := checks.Imports(tree(file, fmt.Sprintf("package planted\n\nimport _ %q\n", tc.to)))
		if all := strings.Join(found, "\n"); err != nil || (all == "") != (tc.want == "") || !strings.Contains(all, tc.want) {
			t.Errorf("Imports of %s with an import of %s = %q, %v; want %q, nil", file, tc.to, found, err, tc.want)
		}
	}
}
