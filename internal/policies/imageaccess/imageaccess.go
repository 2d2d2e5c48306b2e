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

	patterns []pattern
}

// A Set has the files of a folder, by name. It is immutable. A nil Set has none.
type Set struct {
	files    []*File
	accounts bool
	warnings []string
}

// Load reads files into a Set: all of them or none; see [strictyaml.Load].
func Load(files []strictyaml.File) (*Set, error) {
	d := &strictyaml.Decoder{RefuseNull: true}
	s := &Set{}
	all, err := strictyaml.Load(files, func(f strictyaml.File) (*File, string, []error) {
		loaded, warnings, errs := parse(d, f.Data)
		for _, w := range warnings {
			s.warnings = append(s.warnings, f.Name+": "+w)
		}
		return loaded, loaded.Name, errs
	}, strictyaml.NameTaken)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *File) int { return cmp.Compare(a.Name, b.Name) })
	for i, f := range all {
		for _, other := range all[:i] {
			if f.Grant == Lend && other.Grant == Lend && f.overlaps(other) {
				return nil, fmt.Errorf("%s %s: an image and a pod of it are also in %s; which credential to lend is not clear",
					Kind, f.Name, other.Name)
			}
		}
		s.accounts = s.accounts || slices.ContainsFunc(f.From, func(from From) bool { return from.ServiceAccounts != nil })
	}
	s.files = all
	return s, nil
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
	c.from(spec.Child("from"), f.From)
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
		f.patterns = append(f.patterns, p)
	}
}

func (c *checker) from(at *field.Path, from []From) {
	if len(from) == 0 {
		c.required(at, "must have at least one entry; an entry has namespaces or serviceAccounts")
	}
	for i, f := range from {
		at := at.Index(i)
		if (len(f.Namespaces) == 0) == (len(f.ServiceAccounts) == 0) {
			c.required(at, "must have namespaces or serviceAccounts, with at least one entry")
		}
		for j, ns := range f.Namespaces {
			c.each(at.Child("namespaces").Index(j), ns, validation.IsDNS1123Label(ns))
		}
		for j, a := range f.ServiceAccounts {
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

// Warnings returns a sentence about each file that is valid and probably does not say what its author means.
func (s *Set) Warnings() []string {
	if s == nil {
		return nil
	}
	return s.warnings
}

// NeedsServiceAccounts reports whether a file selects pods by their service account.
func (s *Set) NeedsServiceAccounts() bool { return s != nil && s.accounts }

func (f *File) matches(t target) bool {
	return slices.ContainsFunc(f.patterns, func(p pattern) bool { return p.matches(t) })
}

// includes reports whether a pod is in from. What is not known is "" and matches nothing.
func (f *File) includes(namespace, account string) bool {
	return namespace != "" && slices.ContainsFunc(f.From, func(from From) bool {
		return slices.Contains(from.Namespaces, namespace) ||
			account != "" && slices.Contains(from.ServiceAccounts, ServiceAccount{namespace, account})
	})
}

func (f *File) overlaps(g *File) bool {
	return slices.ContainsFunc(f.patterns, func(p pattern) bool { return slices.ContainsFunc(g.patterns, p.overlaps) }) &&
		(f.meets(g) || g.meets(f))
}

// meets reports whether a pod of from is also in that of another file.
func (f *File) meets(g *File) bool {
	return slices.ContainsFunc(f.From, func(from From) bool {
		return slices.ContainsFunc(from.Namespaces, g.mayInclude) ||
			slices.ContainsFunc(from.ServiceAccounts, func(a ServiceAccount) bool { return g.includes(a.Namespace, a.Name) })
	})
}

// mayInclude reports whether a pod of a namespace can be in from.
func (f *File) mayInclude(namespace string) bool {
	return slices.ContainsFunc(f.From, func(from From) bool {
		return slices.Contains(from.Namespaces, namespace) ||
			slices.ContainsFunc(from.ServiceAccounts, func(a ServiceAccount) bool { return a.Namespace == namespace })
	})
}

// Rights returns what the files say about a pod and a repository. Unknown names of namespace and account are "".
func (s *Set) Rights(repository, namespace, account string) (r policy.FileRights) {
	t := targetOf(repository)
	for _, f := range s.Files() {
		to := &r.Enforced
		if f.Audit {
			to = &r.Audited
		}
		in := f.includes(namespace, account)
		switch {
		case in == (f.Grant == Fence) || !f.matches(t):
		case f.Grant == Fence:
			to.Fence = cmp.Or(to.Fence, f.Name)
		case f.Grant == Lend:
			to.Lend = cmp.Or(to.Lend, f.Name)
		default:
			to.Share = cmp.Or(to.Share, f.Name)
		}
	}
	return r
}

// MayGrant reports whether a file may allow a pod of a namespace to use a repository, whatever its service account is.
func (s *Set) MayGrant(repository, namespace string) bool {
	t := targetOf(repository)
	return slices.ContainsFunc(s.Files(), func(f *File) bool {
		return f.Grant != Fence && !f.Audit && f.mayInclude(namespace) && f.matches(t)
	})
}
