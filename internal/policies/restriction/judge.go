package restriction

import (
	"reflect"
	"slices"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// A Set is an immutable set of policies. A nil Set and an empty one admit every pod.
type Set struct {
	policies []*policy            // ordered by name, which are different
	checks   map[reflect.Type]int // how many different ones the policies have, by the type of the view
}

type policy struct {
	name          string
	accept, audit bool
	binding       binding
	rule          podRule
	leaves        []*leaf         // all of them, for Unjudged
	restricts     map[string]bool // the paths of the fields that it restricts
}

// Options say where the view of a judgement comes from, and what is compared.
type Options struct {
	From   Source
	Refuse bool // A field that the source never carries violates a Drop policy. By default it is ignored.
	// Stage says which restrictions are compared: all of them, except at StageTemplate and StageImageReview.
	Stage admission.Stage
	// AssumeUnknown makes a field match that the source carries and whose value is unknown. For explanations only.
	AssumeUnknown bool
	// Others are the other containers of the pod, if the source knows them. An Accept policy must match them too.
	Others []admission.Container
}

// inScope reports whether a field is compared at the stage. Other fields match every policy if they are not known. A
// template has no name yet, and an image review has only the names of images.
func (o *Options) inScope(f *Field) bool {
	return (o.Stage != admission.StageTemplate || f.Path != pathName) &&
		(o.Stage != admission.StageImageReview || f.Path == pathImages)
}

// A Decision is the answer for a pod. The zero Decision denies.
type Decision struct {
	Admitted   bool
	AcceptedBy string // the first Accept policy that the pod matches; "" if there is none
	// Violations are those of the Drop policies by policy, at most 100 of each; in an admitted pod, only of audits.
	Violations []Violation
}

// A Violation is one field of a pod that does not match a policy.
type Violation struct {
	Policy    string `json:"policy"`
	Audit     bool   `json:"audit"`     // The policy only reports.
	Path      string `json:"path"`      // of the restriction in the policy
	Container string `json:"container"` // its name; "" if the violation is not about one
	Mount     string `json:"mount"`     // its path; "" if the violation is not about one
	Unknown   bool   `json:"unknown"`   // The field is not known. Value is "" then.
	Value     string `json:"value"`     // of the pod, shortened
	Allowed   string `json:"allowed"`   // describes the values that match
}

func (v Violation) String() string {
	at, what := "policy "+v.Policy+": ", v.Value+" is not allowed"
	if v.Container != "" {
		at += "container " + shown(v.Container) + ": "
	}
	if v.Mount != "" {
		at += "mount " + shown(v.Mount) + ": "
	}
	if v.Unknown {
		what = "the value is not known"
	}
	return at + v.Path + ": " + what + "; allowed: " + v.Allowed
}

// Judge compares a pod with the policies that are bound to its namespace. At admission, containers are all of the pod.
// At the node they are the one that is created; none means the sandbox, which has no fields of containers. Without
// Options.Others, two containers of a pod can be accepted by different Accept policies there.
func (s *Set) Judge(p *admission.Pod, containers []admission.Container, o Options) Decision {
	if s.Len() == 0 {
		return Decision{Admitted: true}
	}
	whole := containers
	if len(o.Others) > 0 {
		whole = slices.Concat(containers, o.Others)
	}
	j := judgement{
		Options: o, sandbox: o.From != Admission && len(containers) == 0, pod: p, podView: &views(s, p)[0],
		volumes: s.volumes(p.Volumes), subjects: s.subjects(whole),
	}
	acceptedInAudit := false
	for _, policy := range s.policies {
		if !policy.accept || policy.audit && acceptedInAudit || !j.matches(policy, false) {
			continue
		}
		if !policy.audit {
			return Decision{Admitted: true, AcceptedBy: policy.name}
		}
		acceptedInAudit = true
	}
	j.subjects = j.subjects[:len(containers)]
	d := Decision{Admitted: true}
	for _, policy := range s.policies {
		if policy.accept || policy.audit && acceptedInAudit || j.matches(policy, true) {
			continue
		}
		d.Admitted = d.Admitted && policy.audit
		d.Violations = append(d.Violations, j.explain(policy)...)
	}
	return d
}

type judgement struct {
	Options
	sandbox  bool
	pod      *admission.Pod
	podView  *view
	volumes  []view // of the pod
	subjects []subject
	accept   bool         // the policy is an Accept policy
	report   *[]Violation // where violations are added; nil if only the answer matters
	subject  *subject     // the container that is compared; nil outside of containers
	*view                 // that is compared
}

// matches reports whether a pod matches a policy; unbound if the policy is not bound to its namespace.
func (j *judgement) matches(p *policy, unbound bool) bool {
	j.accept = p.accept
	if in := p.binding.includes(j.pod); in == no || in == unknown && p.accept {
		return unbound
	}
	j.view = j.podView
	ok := p.rule.values.matches(j)
	if j.report == nil && !ok {
		return false
	}
	ok = p.rule.checkVolumes(j, j.pod.Volumes) && ok
	for i := range j.subjects {
		ok = p.rule.checkContainer(j, &j.subjects[i]) && ok
		if !ok && j.decided() {
			break
		}
	}
	return ok
}

// maxViolations bounds what is reported of one policy: a tenant chooses the numbers of containers and of mounts.
const maxViolations = 100

// decided reports whether a further comparison of a pod that does not match so far changes nothing.
func (j *judgement) decided() bool { return j.report == nil || len(*j.report) >= maxViolations }

func (j *judgement) explain(p *policy) []Violation {
	var found []Violation
	j.report = &found
	j.matches(p, true)
	j.report = nil
	found = found[:min(len(found), maxViolations)]
	for i := range found {
		found[i].Policy, found[i].Audit = p.name, p.audit
	}
	return found
}

func (j *judgement) violated(l *leaf, value string) bool { return j.add(l, Violation{Value: value}) }

func (j *judgement) unknown(l *leaf) bool {
	if l.field.at(j.From) == Never {
		return j.unjudged(l)
	}
	return j.leftOut(l) || j.AssumeUnknown || j.add(l, Violation{Unknown: true})
}

func (j *judgement) unjudged(l *leaf) bool {
	return j.leftOut(l) || !j.accept && (!j.Refuse || j.add(l, Violation{Unknown: true}))
}

func (j *judgement) leftOut(l *leaf) bool {
	return j.sandbox && l.field.ByContainer || !j.inScope(l.field)
}

func (j *judgement) add(l *leaf, v Violation) bool {
	if j.report != nil {
		v.Path, v.Allowed = l.path, l.allowed
		if j.subject != nil {
			v.Container, v.Mount = j.subject.container.Name, j.mount
		}
		*j.report = append(*j.report, v)
	}
	return false
}

// A view is a pod, a container, or a mount or a volume of one.
type view struct {
	values  []any    // pointers, by Field.index
	answers []answer // by check.number
	mount   string   // the path of a mount
}

func views[T any](s *Set, objects ...*T) []view {
	of := reflect.TypeFor[T]()
	fields, checks, all := valuesIn[of], s.checks[of], make([]view, len(objects))
	values, answers := make([]any, 0, len(objects)*len(fields)), make([]answer, len(objects)*checks)
	for i, object := range objects {
		for _, index := range fields {
			values = append(values, reflect.ValueOf(object).Elem().FieldByIndex(index).Addr().Interface())
		}
		all[i] = view{values: values[i*len(fields):], answers: answers[i*checks:][:checks]}
	}
	return all
}

func (s *Set) volumes(v admission.Value[[]admission.Volume]) []view {
	volumes, _ := v.Effective()
	mounts := make([]*admission.Mount, len(volumes))
	for i, volume := range volumes {
		mounts[i] = &admission.Mount{Volume: volume}
	}
	return views(s, mounts...)
}

type subject struct {
	view
	container *admission.Container
	image     imageName
	mounts    []view // without repetitions
}

func (s *Set) subjects(containers []admission.Container) []subject {
	all := make([]subject, len(containers))
	for i := range containers {
		c := &containers[i]
		all[i] = subject{views(s, c)[0], c, imageOf(c.Image), s.mounts(c.Mounts)}
	}
	return all
}

// maxCompared bounds the comparisons for one mount, because a tenant chooses the number of mounts.
const maxCompared = 32

// mounts returns the mounts that differ in more than their paths in the container, which no policy restricts.
func (s *Set) mounts(v admission.Value[[]admission.Mount]) []view {
	mounts, _ := v.Effective()
	kept := make([]*admission.Mount, 0, len(mounts))
	for i := range mounts {
		same := func(d *admission.Mount) bool {
			return d.Volume == mounts[i].Volume && d.ReadOnly == mounts[i].ReadOnly && d.Propagation == mounts[i].Propagation
		}
		if !slices.ContainsFunc(kept[:min(len(kept), maxCompared)], same) {
			kept = append(kept, &mounts[i])
		}
	}
	all := views(s, kept...)
	for i, m := range kept {
		all[i].mount = m.Path
	}
	return all
}
