package imageaccess

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/pkg/policy"
)

// The header of a file.
const (
	APIVersion = "policy.pullgate.dev/v1alpha1"
	Kind       = "ImageAccess"
)

// A Grant is what a file gives to the pods of its from, or takes from all others.
type Grant string

// The grants.
const (
	Share Grant = "Share" // its pods may use the image while anybody's proof of access to it is valid
	Lend  Grant = "Lend"  // Share, and their pulls get a credential
	Fence Grant = "Fence" // no other pod may use the image
)

type document struct {
	APIVersion string               `json:"apiVersion"`
	Kind       string               `json:"kind"`
	Metadata   restriction.Metadata `json:"metadata"`
	Spec       struct {
		Images      []string     `json:"images"`
		From        []From       `json:"from"`
		Grant       Grant        `json:"grant"`
		Credentials *credentials `json:"credentials"`
	} `json:"spec"`
}

type credentials struct {
	DockerConfigFile string `json:"dockerConfigFile"`
}

// A From selects pods by one of its fields.
type From struct {
	Namespaces      []string         `json:"namespaces,omitempty"`
	ServiceAccounts []ServiceAccount `json:"serviceAccounts,omitempty"`
}

// A ServiceAccount selects the pods that run as it.
type ServiceAccount struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// A File is one file. The caller must not modify it.
type File struct {
	Name       string
	Grant      Grant
	Audit      bool // It only reports.
	Images     []string
	From       []From
	Credential string // the path of the docker configuration of a Lend

	patterns   []pattern
	namespaces map[string]bool         // of from
	accounts   map[ServiceAccount]bool // of from
	within     map[string]bool         // the namespaces of accounts
}

// A Set has the files of a folder, by name. It is immutable. A nil Set has none.
type Set struct {
	files    []*File
	grants   map[string][]rule // Shares and Lends by canonical registry
	fences   map[string][]rule // by sameRegistry
	accounts bool
	warnings []string
}

// A rule has those patterns of a file that are for one registry.
type rule struct {
	file     *File
	patterns []pattern
}

func newSet(files []*File, warnings []string) *Set {
	s := &Set{files: files, grants: map[string][]rule{}, fences: map[string][]rule{}, warnings: warnings}
	for _, f := range files {
		s.accounts = s.accounts || len(f.accounts) > 0
		by := s.grants
		if f.Grant == Fence {
			by = s.fences
		}
		for _, p := range f.patterns {
			if last := len(by[p.registry]) - 1; last >= 0 && by[p.registry][last].file == f {
				of := &by[p.registry][last]
				of.patterns = append(of.patterns, p)
			} else {
				by[p.registry] = append(by[p.registry], rule{f, []pattern{p}})
			}
		}
	}
	return s
}

// Load reads files into a Set: all of them or none; see [strictyaml.Load].
func Load(files []strictyaml.File) (*Set, error) {
	d := &strictyaml.Decoder{RefuseNull: true}
	var warnings []string
	all, err := strictyaml.Load(files, func(f strictyaml.File) (*File, string, []error) {
		loaded, warned, errs := parse(d, f.Data)
		for _, w := range warned {
			warnings = append(warnings, f.Name+": "+w)
		}
		return loaded, loaded.Name, errs
	}, strictyaml.NameTaken)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *File) int { return cmp.Compare(a.Name, b.Name) })
	images := 0
	for _, f := range all {
		images += len(f.patterns)
	}
	if images > maxPatterns {
		return nil, fmt.Errorf("files of kind %s have %d images; at most %d in all", Kind, images, maxPatterns)
	}
	if err := oneLend(all); err != nil {
		return nil, err
	}
	return newSet(all, warnings), nil
}

// maxPatterns bounds the images of all files.
const maxPatterns = 4096

// oneLend returns an error if two files lend for one image and pod.
func oneLend(all []*File) error {
	lends := slices.DeleteFunc(slices.Clone(all), func(f *File) bool { return f.Grant != Lend })
	c := comparer{left: maxSteps}
	for i, f := range lends {
		for _, other := range lends[:i] {
			if c.overlap(f, other) {
				return fmt.Errorf("%s %s: an image and a pod of it are also in %s; which credential to lend is not clear",
					Kind, f.Name, other.Name)
			}
			if c.left < 0 {
				return fmt.Errorf("%s %s: too many images of files with grant: Lend to compare; use fewer, or fewer wildcards",
					Kind, f.Name)
			}
		}
	}
	return nil
}

func parse(d *strictyaml.Decoder, data []byte) (f *File, warnings []string, errs []error) {
	f = &File{}
	var doc document
	errs, err := d.Decode(data, &doc)
	if err != nil {
		return f, nil, []error{err}
	}
	f.Name, f.Grant, f.Images, f.From = doc.Metadata.Name, doc.Spec.Grant, doc.Spec.Images, doc.Spec.From
	c := checker{incomplete: len(errs) > 0}
	c.header(&doc)
	f.Audit = doc.Metadata.Annotations[restriction.ModeAnnotation] == restriction.ModeAudit
	spec := field.NewPath("spec")
	if !slices.Contains([]Grant{Share, Lend, Fence}, f.Grant) && (f.Grant != "" || !c.incomplete) {
		c.errs = append(c.errs, field.NotSupported(spec.Child("grant"), f.Grant, []Grant{Share, Lend, Fence}))
	}
	c.images(spec.Child("images"), f, &warnings)
	c.from(spec.Child("from"), f)
	at := spec.Child("credentials")
	switch given := doc.Spec.Credentials; {
	case f.Grant != Lend && given != nil:
		c.invalid(at, "", "must be absent without grant: Lend")
	case f.Grant == Lend && given == nil:
		c.required(at, "must have the file with the credential to lend")
	case given != nil:
		f.Credential = given.DockerConfigFile
		if p := f.Credential; !filepath.IsAbs(p) || filepath.Clean(p) != p || p == "/" {
			c.invalid(at.Child("dockerConfigFile"), p, "must be an absolute path, as in /etc/pullgate/lend/team-a.json")
		}
	}
	return f, warnings, append(errs, c.errs...)
}

type checker struct {
	errs       []error
	incomplete bool // fields can be missing because they have errors already
}

func (c *checker) invalid(at *field.Path, value any, detail string) {
	c.errs = append(c.errs, field.Invalid(at, value, detail))
}

func (c *checker) required(at *field.Path, detail string) {
	if !c.incomplete {
		c.errs = append(c.errs, field.Required(at, detail))
	}
}

func (c *checker) each(at *field.Path, value string, details []string) {
	for _, detail := range details {
		if value == "" && c.incomplete {
			continue
		}
		c.invalid(at, value, detail)
	}
}

func (c *checker) header(doc *document) {
	if doc.APIVersion != APIVersion {
		c.errs = append(c.errs, field.NotSupported(field.NewPath("apiVersion"), doc.APIVersion, []string{APIVersion}))
	}
	if doc.Kind != Kind {
		c.errs = append(c.errs, field.NotSupported(field.NewPath("kind"), doc.Kind, []string{Kind}))
	}
	c.each(field.NewPath("metadata", "name"), doc.Metadata.Name, validation.IsDNS1123Subdomain(doc.Metadata.Name))
	modes := []string{restriction.ModeAudit, restriction.ModeEnforce}
	if mode, ok := doc.Metadata.Annotations[restriction.ModeAnnotation]; ok && !slices.Contains(modes, mode) {
		at := field.NewPath("metadata", "annotations").Key(restriction.ModeAnnotation)
		c.errs = append(c.errs, field.NotSupported(at, mode, modes))
	}
}

// maxImages bounds the images of a file, because each is compared with those of other files.
const maxImages = 256

func (c *checker) images(at *field.Path, f *File, warnings *[]string) {
	switch n := len(f.Images); {
	case n == 0:
		c.required(at, "must have at least one repository")
	case n > maxImages:
		c.invalid(at, n, fmt.Sprintf("must have at most %d repositories", maxImages))
		return
	}
	for i, text := range f.Images {
		p, err := parsePattern(text)
		if err != nil {
			c.invalid(at.Index(i), text, err.Error())
			continue
		}
		if p.whole() && slices.Contains(publicRegistries(), p.registry) {
			if f.Grant == Lend {
				c.invalid(at.Index(i), text, "must not be a whole public registry, which would get the credential for "+
					"images of anybody")
			} else {
				*warnings = append(*warnings, fmt.Sprintf("%s: %s is a whole public registry", at.Index(i), text))
			}
		}
		if f.Grant == Fence {
			p.registry = sameRegistry(p.registry)
		}
		f.patterns = append(f.patterns, p)
	}
}

func (c *checker) from(at *field.Path, f *File) {
	if len(f.From) == 0 {
		c.required(at, "must have at least one entry; an entry has namespaces or serviceAccounts")
	}
	f.namespaces, f.accounts, f.within = map[string]bool{}, map[ServiceAccount]bool{}, map[string]bool{}
	for i, from := range f.From {
		at := at.Index(i)
		if (len(from.Namespaces) == 0) == (len(from.ServiceAccounts) == 0) {
			c.required(at, "must have namespaces or serviceAccounts, with at least one entry")
		}
		for j, ns := range from.Namespaces {
			f.namespaces[ns] = true
			c.each(at.Child("namespaces").Index(j), ns, validation.IsDNS1123Label(ns))
		}
		for j, a := range from.ServiceAccounts {
			f.accounts[a], f.within[a.Namespace] = true, true
			at := at.Child("serviceAccounts").Index(j)
			c.each(at.Child("namespace"), a.Namespace, validation.IsDNS1123Label(a.Namespace))
			c.each(at.Child("name"), a.Name, validation.IsDNS1123Subdomain(a.Name))
		}
	}
}

// Files returns the files, by name.
func (s *Set) Files() []*File {
	if s == nil {
		return nil
	}
	return s.files
}

// FilesOf returns the files about a repository, by name.
func (s *Set) FilesOf(repository string) (of []*File) {
	if s == nil {
		return nil
	}
	add := func(f *File) bool {
		of = append(of, f)
		return false
	}
	t := targetOf(repository)
	matching(s.grants, t, add)
	t.registry = sameRegistry(t.registry)
	matching(s.fences, t, add)
	slices.SortFunc(of, func(a, b *File) int { return cmp.Compare(a.Name, b.Name) })
	return of
}

// Who returns the namespaces and the service accounts of from, these as NAMESPACE/NAME.
func (f *File) Who() (namespaces, accounts []string) {
	for _, from := range f.From {
		namespaces = append(namespaces, from.Namespaces...)
		for _, a := range from.ServiceAccounts {
			accounts = append(accounts, a.Namespace+"/"+a.Name)
		}
	}
	return namespaces, accounts
}

// Warnings returns a sentence about each file that is valid and probably does not say what its author means.
func (s *Set) Warnings() []string {
	if s == nil {
		return nil
	}
	return s.warnings
}

// NeedsServiceAccounts reports whether a file selects pods by their service account.
func (s *Set) NeedsServiceAccounts() bool { return s != nil && s.accounts }

// includes reports whether a pod is in from. What is not known is "" and matches nothing.
func (f *File) includes(namespace, account string) bool {
	return namespace != "" && (f.namespaces[namespace] || account != "" && f.accounts[ServiceAccount{namespace, account}])
}

// mayInclude reports whether a pod of a namespace, "" for any, can be in from.
func (f *File) mayInclude(namespace string) bool {
	return namespace == "" || f.namespaces[namespace] || f.within[namespace]
}

// MayInclude reports whether a pod of a namespace can be in from of a file, by its service account.
func (s *Set) MayInclude(file, namespace string) bool {
	return slices.ContainsFunc(s.Files(), func(f *File) bool { return f.Name == file && f.mayInclude(namespace) })
}

// Rights returns what the files say about a pod and a repository. Unknown names of namespace and account are "". For an
// unknown repository, "", every Fence counts, and no other file.
func (s *Set) Rights(repository, namespace, account string) (r policy.FileRights) {
	if s == nil {
		return r
	}
	add := func(f *File) bool {
		to := &r.Enforced
		if f.Audit {
			to = &r.Audited
		}
		switch in := f.includes(namespace, account); {
		case in == (f.Grant == Fence):
		case f.Grant == Fence:
			to.Fence = cmp.Or(to.Fence, f.Name)
		case f.Grant == Lend:
			to.Lend = cmp.Or(to.Lend, f.Name)
		default:
			to.Share = cmp.Or(to.Share, f.Name)
		}
		return false
	}
	t := targetOf(repository)
	matching(s.grants, t, add)
	t.registry = sameRegistry(t.registry)
	matching(s.fences, t, add)
	if repository == "" {
		for _, f := range s.files {
			if f.Grant == Fence {
				add(f)
			}
		}
	}
	return r
}

// matching calls do for the files that match a target, until it returns true.
func matching(by map[string][]rule, t target, do func(*File) bool) bool {
	return slices.ContainsFunc(by[t.registry], func(r rule) bool {
		return slices.ContainsFunc(r.patterns, func(p pattern) bool { return p.matches(t) }) && do(r.file)
	})
}

// MayGrant reports whether a file may allow a pod of a namespace, "" for any, to use a repository, whatever its service
// account is.
func (s *Set) MayGrant(repository, namespace string) bool {
	return s != nil && matching(s.grants, targetOf(repository), func(f *File) bool {
		return !f.Audit && f.mayInclude(namespace)
	})
}

// Unverified is what is wrong if a set gives a right and nothing is verified because the kubelet does not verify.
const Unverified = "files of kind ImageAccess share or lend images, and kubeletConfig has the policy NeverVerify: " +
	"pullgate verifies nothing, and every pod may use every image on the node"

// Gives reports whether a Share or a Lend is enforced.
func (s *Set) Gives() bool { return slices.ContainsFunc(s.Files(), (*File).gives) }
