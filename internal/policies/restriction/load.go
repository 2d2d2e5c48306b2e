package restriction

import (
	"cmp"
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
		s      Set
		errs   []error
		fileOf = map[string]string{} // by the name of the policy
		// numbers are those of checks, by their text.
		numbers = map[string]int{}
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
		r.compiled.rule.number(numbers)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	s.checks = len(numbers)
	slices.SortFunc(s.policies, func(a, b *policy) int { return cmp.Compare(a.name, b.name) })
	return &s, nil
}

// A reading is what reading one file gave.
type reading struct {
	compiled *policy
	err      error
}

// readAll reads files on all processors.
func readAll(files []File) []reading {
	all := make([]reading, len(files))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(files)) {
		workers.Go(func() {
			decoder := newDecoder()
			for i := next.Add(1) - 1; i < int64(len(files)); i = next.Add(1) - 1 {
				_, all[i].compiled, all[i].err = parse(decoder, files[i].Data)
			}
		})
	}
	workers.Wait()
	return all
}

// number numbers the checks of a pod and of its containers.
func (r *podRule) number(numbers map[string]int) {
	lists := []checks{r.checks}
	for _, c := range slices.Concat(r.containers, r.initContainers) {
		lists = append(lists, c.checks)
	}
	for _, list := range lists {
		for i := range list {
			c := &list[i]
			if _, known := numbers[c.text]; !known {
				numbers[c.text] = len(numbers)
			}
			c.number = numbers[c.text]
		}
	}
}

// inFile returns the errors that err joins, each with the name of the file.
func inFile(name string, err error) (all []error) {
	for _, e := range safetext.Split(err) {
		all = append(all, fmt.Errorf("%s: %w", name, e))
	}
	return all
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
	Mode BindingMode
	// Audit reports whether the policy only reports.
	Audit bool
	// Everywhere reports whether the policy is bound to all namespaces. Otherwise it is bound to Namespaces and to those
	// that Selector selects, in the notation of kubectl --selector.
	Everywhere bool
	Namespaces []string
	Selector   string
}

// Policies returns a summary of each policy, by name.
func (s *Set) Policies() []Summary {
	var all []Summary
	for _, p := range s.all() {
		b := &p.binding
		sum := Summary{Name: p.name, Mode: BindingModeDrop, Audit: p.audit, Everywhere: b.everywhere(), Namespaces: b.namespaces}
		if p.accept {
			sum.Mode = BindingModeAccept
		}
		if b.selector != nil {
			sum.Selector = b.selector.String()
		}
		all = append(all, sum)
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
