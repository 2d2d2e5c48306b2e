package imageaccess_test

import (
	"os"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/policy"
)

// The files of the how-to pages are in the pages, and do what these say.
func TestExamplesOfThePages(t *testing.T) {
	const base, ecr = "registry.example/team-a/base", "111122223333.dkr.ecr.eu-west-1.amazonaws.com/team-a/app"
	type use struct{ repository, namespace, account string }
	shared, audited := policy.FileRights{}, policy.FileRights{}
	shared.Enforced.Share, audited.Audited.Fence = "team-a-base", "team-a-ecr"
	for file, of := range map[string]struct {
		page string
		want map[use]policy.FileRights
	}{
		"team-a-base": {"share-a-base-image", map[use]policy.FileRights{
			{base, "team-b", ""}: shared, {base, "team-c", "builder"}: shared,
			{base, "team-c", ""}: {}, {base + "-x", "team-b", ""}: {}, {"registry.example/team-a/app", "team-b", ""}: {},
		}},
		"team-a-ecr": {"fence-an-ecr-repository", map[use]policy.FileRights{
			{ecr, "team-b", ""}: audited, {ecr, "", ""}: audited, {ecr, "ci", ""}: {}, {ecr, "team-a", ""}: {},
			{"111122223333.dkr-ecr.eu-west-1.on.aws/team-a/app", "team-b", ""}: audited,
		}},
	} {
		data := testkit.Value(os.ReadFile("../../../docs/examples/image-access/" + file + ".yaml"))(t)
		page := string(testkit.Value(os.ReadFile("../../../docs/" + of.page + ".md"))(t))
		if !strings.Contains(page, "```yaml\n"+string(data)+"```") || !strings.Contains(page, "image-access/"+file+".yaml") {
			t.Errorf("%s has another file than %s", of.page, file)
		}
		s := load(t, strictyaml.File{Name: file, Data: data})
		for x, want := range of.want {
			if got := s.Rights(x.repository, x.namespace, x.account); got != want || len(s.Warnings()) > 0 {
				t.Errorf("%s: rights of %v = %+v; want %+v, and no warning", file, x, got, want)
			}
		}
	}
}
