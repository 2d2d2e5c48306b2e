package policyfiles

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
)

// TestSettings say which policies are tested, and who judges.
type TestSettings struct {
	// Folder and NamespaceLabels are as in Paths. Owners and modes are not checked.
	Folder, NamespaceLabels string
	// AtAdmission judges as an admission webhook does, by the whole Pod. Otherwise a node judges.
	AtAdmission    bool
	Node           podfile.Node // how the node sees pods
	RefuseUnjudged bool         // A restriction that the node cannot judge denies.
	MayBeEmpty     bool         // A folder without a policy is not an error.
}

// A Tester has policies that pods are compared with.
type Tester struct {
	*Set
	Access  []File // the files of kind ImageAccess
	options restriction.Options
	node    podfile.Node
}

// NewTester reads policies. The error joins all errors of all files; a folder without a policy is one.
func NewTester(s TestSettings) (*Tester, error) {
	set, files, err := ReadFiles(Paths{Folder: s.Folder, NamespaceLabels: s.NamespaceLabels, AnyOwner: true})
	if err != nil {
		return nil, err
	}
	if set.Empty() && !s.MayBeEmpty {
		return nil, fmt.Errorf("%s: no policy file", s.Folder)
	}
	o := restriction.Options{From: restriction.SourceOf(s.Node.PodSource), Refuse: s.RefuseUnjudged}
	if s.AtAdmission {
		o.From = restriction.Admission
	}
	files = slices.DeleteFunc(files, func(f File) bool {
		kind, _ := kindOf(f.Data) // it was read before
		return kind != imageaccess.Kind
	})
	return &Tester{set, files, o, s.Node}, nil
}

// A TestPod is a pod with the name of its file.
type TestPod struct {
	podfile.Pod
	File string
}

// A TestResult says which pods are admitted. Its JSON form is for scripts.
type TestResult struct {
	Pods     []TestedPod               `json:"pods"`
	Unjudged []restriction.PolicyField `json:"unjudged"` // what the node cannot judge
	NotAsked []string                  `json:"notAsked"` // backends, which can deny a pod that is admitted here
}

// A TestedPod is the result for one pod.
type TestedPod struct {
	File      string `json:"file"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Admitted  bool   `json:"admitted"`
	// AcceptedBy are the Accept policies that the pod, or a container of it, matches.
	AcceptedBy []string        `json:"acceptedBy"`
	Violations []TestViolation `json:"violations"` // of an admitted pod: of policies that only report
	// NotJudged are sentences about rules that signatures, digests or conditions decide, and about hooks. They can deny a
	// pod that is admitted here.
	NotJudged []string `json:"notJudged"`
}

// A TestViolation is one field that does not match a policy.
type TestViolation struct {
	restriction.Violation
	Message string `json:"message"`
}

// Test compares pods with the policies. Exemptions of the configuration have no effect.
func (p *Tester) Test(pods []TestPod) *TestResult {
	r := &TestResult{Pods: []TestedPod{}, Unjudged: []restriction.PolicyField{}, NotAsked: []string{}}
	for _, pod := range pods {
		r.Pods = append(r.Pods, p.test(pod))
	}
	r.Unjudged = append(r.Unjudged, Unjudged(p.Set, p.options.From)...)
	for _, b := range BackendsOf(p.Set) {
		r.NotAsked = append(r.NotAsked, b.Name)
	}
	return r
}

func (p *Tester) test(pod TestPod) TestedPod {
	t := TestedPod{
		File: pod.File, Kind: pod.Kind, Namespace: pod.Namespace, Name: pod.Name, Admitted: true,
		AcceptedBy: []string{}, Violations: []TestViolation{}, NotJudged: []string{},
	}
	atNode := p.options.From != restriction.Admission
	for _, i := range pod.Images() {
		t.addImage(i, Requirements(p.Set).For(pod.Namespace, imageref.New(i.Name)), atNode)
		if atNode {
			t.addAccess(i, AccessOf(p.Set))
		}
	}
	view, _ := pod.AtAdmission()
	view = p.labeled(view)
	for _, d := range DefaultsOf(p.Set) {
		if included, known := d.Includes(&view); included || !known {
			t.notJudged("%s %s adds what the pod lacks, in the webhook", DefaultsKind, d.Name)
		}
	}
	t.addHooks(view, HooksOf(p.Set), atNode)
	if p.options.From == restriction.Admission {
		view, containers := pod.AtAdmission()
		t.add(p.judge(view, containers, nil))
		return t
	}
	for _, s := range pod.AtNode(p.node) {
		var containers []admission.Container
		if s.Container != nil {
			containers = append(containers, *s.Container)
		}
		t.add(p.judge(s.Pod, containers, s.Others))
	}
	return t
}

func (p *Tester) judge(pod admission.Pod, containers, others []admission.Container) restriction.Decision {
	pod = p.labeled(pod)
	options := p.options
	options.Others = others
	return Restrictions(p.Set).Judge(&pod, containers, options)
}

func (p *Tester) labeled(pod admission.Pod) admission.Pod {
	if labels, ok := p.NamespaceLabels[pod.Namespace]; ok {
		pod.NamespaceLabels = admission.Set(labels)
	}
	return pod
}

func (t *TestedPod) addHooks(pod admission.Pod, hooks Hooks, atNode bool) {
	for i := range hooks {
		h := &hooks[i]
		switch selected := h.Selects(&pod); {
		case selected && h.Mutating:
			t.notJudged("initialiser %s can change the pod, in the webhook", h.Name)
		case selected && (atNode && h.AtNode() || !atNode && h.AtAdmission()):
			t.notJudged("hook %s is asked about the pod", h.Name)
		}
	}
}

func (t *TestedPod) addImage(i podfile.Image, rules requirement.ImageRules, atNode bool) {
	if atNode {
		rules.Rules = slices.DeleteFunc(slices.Clone(rules.Rules), func(r *requirement.Rule) bool {
			if r.Selects != nil {
				t.notJudged("%s is for some pods, which the webhook selects", r)
			}
			return r.Selects != nil
		})
	}
	rules.Pinned = rules.AddsDigest()
	name := imageref.New(i.Name)
	judged := rules.Judge(name)
	for _, f := range judged.Findings {
		if f.Answer == admission.Admit {
			continue
		}
		t.Admitted = t.Admitted && f.Audit
		t.Violations = append(t.Violations, TestViolation{Message: f.Message, Violation: restriction.Violation{
			Policy: f.Policy, Audit: f.Audit, Path: f.Rule, Container: i.Container, Value: i.Name,
			Unknown: f.Reason == admission.FieldUnknown,
		}})
	}
	for _, r := range rules.Rules {
		if r.MutateDigest && !rules.Unknown && !name.Name().IsDigest() {
			t.notJudged("%s adds the digest of image %q, in the webhook", r, i.Name)
		}
		if slices.Contains(judged.Signed, r) {
			what := "needs the signatures of"
			if !slices.ContainsFunc(r.Requirement.Signers(), func(s *requirement.Signer) bool { return s.Image == nil }) {
				what = "has conditions on"
			}
			t.notJudged("%s %s image %q", r, what, i.Name)
		}
		if r.Mutation != nil {
			t.notJudged("%s changes the pod for image %q by what was verified, in the webhook", r, i.Name)
		}
		if r.Object != nil || r.Selects != nil {
			t.notJudged("%s has conditions on pods, which the webhook judges", r)
		}
	}
}

// addAccess compares an image with the files of kind ImageAccess, without the pod's service account. Exemptions of the
// configuration have no effect, as for other kinds.
func (t *TestedPod) addAccess(i podfile.Image, set *imageaccess.Set) {
	repository := imageref.New(i.Name).Repository()
	r := set.Rights(repository, t.Namespace, "")
	for _, of := range []policy.NamedRights{r.Enforced, r.Audited} {
		audit := of != r.Enforced
		switch {
		case of.Fence != "" && set.MayInclude(of.Fence, t.Namespace):
			t.notJudged("ImageAccess %s reserves image %q for others, perhaps for its service account", of.Fence, i.Name)
		case of.Fence != "":
			t.Admitted = t.Admitted && audit
			t.Violations = append(t.Violations, TestViolation{
				Message: "repository " + repository + " is reserved for other namespaces",
				Violation: restriction.Violation{
					Policy: of.Fence, Audit: audit, Path: "spec.images", Container: i.Container, Value: i.Name,
				},
			})
		case of.Share != "" || of.Lend != "":
			t.notJudged("ImageAccess %s lets the pod use image %q while a proof of access is valid on the node",
				cmp.Or(of.Share, of.Lend), i.Name)
		}
	}
}

func (t *TestedPod) notJudged(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(t.NotJudged, text) {
		t.NotJudged = append(t.NotJudged, text)
	}
}

// add adds a decision. A violation by the pod is in the decision about each of its containers.
func (t *TestedPod) add(d restriction.Decision) {
	t.Admitted = t.Admitted && d.Admitted
	if d.AcceptedBy != "" && !slices.Contains(t.AcceptedBy, d.AcceptedBy) {
		t.AcceptedBy = append(t.AcceptedBy, d.AcceptedBy)
	}
	for _, f := range d.Violations {
		v := TestViolation{f, f.String()}
		if !slices.Contains(t.Violations, v) {
			t.Violations = append(t.Violations, v)
		}
	}
}

// Denied returns the number of pods that are denied.
func (r *TestResult) Denied() (n int) {
	for _, p := range r.Pods {
		if !p.Admitted {
			n++
		}
	}
	return n
}
