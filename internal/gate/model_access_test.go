package gate_test

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
)

// A modelFile is one file of kind ImageAccess, for a repository and everything that begins like it.
type modelFile struct{ grant, repository, from string }

// modelAccess are the files that an operator can have in force.
var modelAccess = [][]modelFile{
	nil,
	{{"Share", "repo.test/alice/", "bob"}},
	{{"Fence", "repo.test/alice/", "alice"}},
	{{"Lend", "repo.test/alice/", "bob"}},
	{{"Lend", "repo.test/alice/", "bob"}, {"Fence", "repo.test/shared/", "bob"}},
	{
		{"Share", "repo.test/alice/", "bob"}, {"Fence", "repo.test/alice/", "alice"}, {"Share", "repo.test/shared/", "infra"},
	},
	{{"Fence", "docker.io/library/", "alice"}, {"Fence", "mallory.test/", "bob"}, {"Share", "mallory.test/", "bob"}},
	{{"Share", "repo.test/", "bob"}},
}

// modelNodeNamespaces are the namespaces that credentials of the node can be for.
var modelNodeNamespaces = [][]string{nil, {}, {"alice"}, {"bob", "infra"}, {"alice", systemNamespace}}

func (f modelFile) is(grant, repository string) bool {
	return f.grant == grant && strings.HasPrefix(repository, f.repository)
}

// fenced reports whether a Fence excludes a namespace. Two of them do if one does.
func (t *truth) fenced(q question) bool {
	if t.exempt && (q.static || q.namespace == systemNamespace) {
		return false
	}
	return slices.ContainsFunc(t.files, func(f modelFile) bool {
		return f.is("Fence", q.repository) && f.from != q.namespace
	})
}

func (t *truth) lends(repository, namespace string) bool {
	return slices.ContainsFunc(t.files, func(f modelFile) bool {
		return f.is("Lend", repository) && f.from == namespace
	})
}

// shares reports whether a file lets a namespace use what anybody has proved.
func (t *truth) shares(repository, namespace string) bool {
	return t.lends(repository, namespace) || slices.ContainsFunc(t.files, func(f modelFile) bool {
		return f.is("Share", repository) && f.from == namespace
	})
}

// setAccess makes files the ones in force; the operator writes alice's newest password for a Lend.
func (w *modelWorld) setAccess(files []modelFile) {
	var all []strictyaml.File
	credential := w.path + ".lend"
	good := w.good["alice"]
	if len(good) > 0 {
		w.must(os.WriteFile(credential, fmt.Appendf(nil, `{"auths":{"repo.test":{"username":"tenant","password":%q}}}`,
			good[len(good)-1]), 0o600))
	}
	for i, f := range files {
		text := "apiVersion: policy.pullgate.dev/v1alpha1\nkind: ImageAccess\nmetadata: {name: f" + fmt.Sprint(i) +
			"}\nspec:\n  grant: " + f.grant + "\n  images: [" + f.repository + "*]\n  from: [{namespaces: [" + f.from + "]}]\n"
		if f.grant == "Lend" {
			text += "  credentials: {dockerConfigFile: " + credential + "}\n"
		}
		all = append(all, strictyaml.File{Name: fmt.Sprint(i), Data: []byte(text)})
	}
	set, err := imageaccess.Load(all)
	w.must(err)
	if err != nil {
		return
	}
	w.must(imageaccess.NewKeeper(w.path+".access", func(s *imageaccess.Set, ended func(string) bool) error {
		err := w.tracker.SetAccess(s, ended)
		w.gate.SetAccess(s)
		return err
	}).Use(set))
	w.truth.files = files
}

// lentTo compares a pull that got a lent credential with the files.
func (w *modelWorld) lentTo(p *modelPod, name string, by *registryPull, before bool) {
	if !by.lent {
		return
	}
	w.counts["pull with a lent credential"]++
	if !before && !w.truth.lends(repositoryOf(name), p.namespace) {
		w.fail("safety: a pull of %s by %s gets a credential that is not lent to it", name, p.uid)
	}
}
