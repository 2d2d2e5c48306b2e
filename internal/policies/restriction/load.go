package restriction

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

// A File is the content of a policy file. Its name is for errors.
type File struct {
	Name string
	Data []byte
}

// Load reads policy files into a Set: all of them or none. The error joins all errors of all files; each begins with
// the name of the file.
func Load(files []File) (*Set, error) {
	var (
		s      = Set{types: typeNumbers{}}
		errs   []error
		fileOf = map[string]string{} // by the name of the policy
		parts  = partNumbers{}
	)
	for i, r := range readAll(files) {
		name := files[i].Name
		if r.err != nil {
			errs = append(errs, inFile(name, r.err)...)
			continue
		}
		if other, taken := fileOf[r.compiled.name]; taken {
			err := fmt.Errorf("metadata.name: Duplicate value: %q: also in %s; each policy needs its own name", r.compiled.name, other)
			errs = append(errs, inFile(name, errors.Join(strictyaml.WithLines(files[i].Data, []error{err})...))...)
			continue
		}
		fileOf[r.compiled.name] = name
		s.policies = append(s.policies, r.compiled)
		s.images = s.images || r.compiled.restrictsImages()
		parts.numberAll(&r.compiled.rule, r.texts)
		for i := range r.compiled.rule.volumes {
			v := &r.compiled.rule.volumes[i]
			v.types = s.types.allowed(v.volumeType)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	s.parts = len(parts)
	slices.SortFunc(s.policies, func(a, b *policy) int { return cmp.Compare(a.name, b.name) })
	return &s, nil
}

// A reading is what reading one file gave.
type reading struct {
	compiled *policy
	texts    partTexts
	err      error
}

// readAll reads files on all processors.
func readAll(files []File) []reading {
	all := make([]reading, len(files))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(files)) {
		workers.Go(func() {
			decoder, table := newDecoder(), newTable()
			for i := next.Add(1) - 1; i < int64(len(files)); i = next.Add(1) - 1 {
				all[i] = read(decoder, table, files[i].Data)
			}
		})
	}
	workers.Wait()
	return all
}

func read(d *strictyaml.Decoder, t *table, data []byte) reading {
	p, compiled, err := parse(d, t, data)
	if err != nil {
		return reading{err: err}
	}
	return reading{compiled: compiled, texts: textsOf(compiled.accept, p.Spec)}
}

// partTexts are the texts of the parts of a policy. Equal parts have equal texts.
type partTexts struct {
	pod, volumes, containers string
	security                 []string // of each container, then of each init container
}

func textsOf(accept bool, s Spec) partTexts {
	var pod PodSpecRestriction
	if s.Spec != nil {
		pod = *s.Spec
	}
	t := partTexts{
		volumes:    textOf(accept, pod.Volumes),
		containers: textOf(accept, [][]ContainerRestriction{pod.Containers, pod.InitContainers}),
	}
	for _, c := range slices.Concat(pod.Containers, pod.InitContainers) {
		t.security = append(t.security, textOf(accept, c.SecurityContext))
	}
	pod.Volumes, pod.Containers, pod.InitContainers = nil, nil, nil
	t.pod = textOf(accept, Spec{Metadata: s.Metadata, Spec: &pod})
	return t
}

// textOf returns the text of a part of a policy, which is different for parts of different types. A part of an Accept
// policy differs from the same of a Drop policy, because they treat fields differently that are not judged.
func textOf[T any](accept bool, part T) string {
	text, err := json.Marshal(part)
	if err != nil {
		panic("restriction: " + err.Error()) // these types have a JSON form
	}
	return fmt.Sprintf("%T %v ", part, accept) + string(text)
}

// A partNumbers has a number for each part of policies, by its text.
type partNumbers map[string]int

func (n partNumbers) number(text string) int {
	if _, known := n[text]; !known {
		n[text] = len(n)
	}
	return n[text]
}

// numberAll numbers the parts of a policy.
func (n partNumbers) numberAll(r *podRule, t partTexts) {
	r.podPart, r.volumesPart, r.containersPart = n.number(t.pod), n.number(t.volumes), n.number(t.containers)
	for i := range r.containers {
		r.containers[i].securityPart = n.number(t.security[i])
	}
	if r.sameLists() {
		return
	}
	for i := range r.initContainers {
		r.initContainers[i].securityPart = n.number(t.security[len(r.containers)+i])
	}
}

// inFile returns the errors that err joins, each with the name of the file.
func inFile(name string, err error) (all []error) {
	for _, e := range safetext.Split(err) {
		all = append(all, fmt.Errorf("%s: %w", name, e))
	}
	return all
}

func (p *policy) restrictsImages() bool {
	uses := func(r containerRule) bool { return len(r.image) > 0 }
	return slices.ContainsFunc(p.rule.containers, uses) || slices.ContainsFunc(p.rule.initContainers, uses)
}

// all returns the policies; none of a nil Set.
func (s *Set) all() []*policy {
	if s == nil {
		return nil
	}
	return s.policies
}

// Len returns the number of policies.
func (s *Set) Len() int { return len(s.all()) }

// A Summary says what a policy is bound to and how it takes part in decisions.
type Summary struct {
	Name string
	// Audit reports whether the policy only reports.
	Audit bool
	// Binding has the mode Drop if the policy does not give one. The caller must not modify what it refers to.
	Binding Binding
}

// Policies returns a summary of each policy, by name.
func (s *Set) Policies() []Summary {
	var all []Summary
	for _, p := range s.all() {
		all = append(all, Summary{Name: p.name, Audit: p.audit, Binding: p.source})
	}
	return all
}

// A PolicyField is a field that a policy restricts, or a part of a restriction.
type PolicyField struct {
	Policy, Path string
}

// Unjudged returns what the policies restrict and a source never carries, ordered by policy and path.
func (s *Set) Unjudged(from Source) []PolicyField {
	var found []PolicyField
	for _, p := range s.all() {
		for _, l := range p.leaves {
			exactness := l.field.at(from)
			switch {
			case exactness == Never:
				found = append(found, PolicyField{p.name, l.path})
			case exactness != Exact && l.needsState:
				found = append(found, PolicyField{p.name, l.path + " (whether it is set)"})
			}
		}
	}
	slices.SortFunc(found, func(a, b PolicyField) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Path, b.Path))
	})
	return found
}

// Restricted returns the paths of the fields that at least one policy restricts, as Field.Path has them, in order. A
// source of views need not keep any others.
func (s *Set) Restricted() []string {
	var paths []string
	for _, p := range s.all() {
		for _, l := range p.leaves {
			paths = append(paths, l.field.Path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}
