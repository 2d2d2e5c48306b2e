package policyfiles

import (
	"cmp"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// HookKind and InitialiserKind are the names of the kinds, HookVersion their apiVersion.
const (
	HookKind        = "ValidatingWebhookConfiguration"
	InitialiserKind = "MutatingWebhookConfiguration"
	HookVersion     = "admissionregistration.k8s.io/v1"
)

const (
	maxHooks        = 50 // of both kinds; metrics have a label with the name
	ownAnnotation   = "policy.pullgate.dev/"
	atNode          = "Node"
	atAdmission     = "Admission"
	atBoth          = "Both"
	createContainer = "CreateContainer"
	runPodSandbox   = "RunPodSandbox"
)

// A Hook is a webhook of a file, which is asked about pods.
type Hook struct {
	Name        string // metadata.name of the file, a slash and the name of the webhook
	File        string
	Mutating    bool   // It is an initialiser: it changes new pods in admission, and judges none.
	At          string // Node, Admission or Both
	Stages      []string
	URL         string // https, or http if there is a Socket; it can have a token
	Socket      string // the path of a Unix socket; "" if there is none
	CABundle    string // PEM; "" means the certificates of the system
	Certificate string // the folder with the client certificate; "" if there is none
	Timeout     time.Duration
	FailOpen    bool // A pod is admitted if the hook does not answer.
	Audit       bool // What the hook denies is only reported.
	// Create, Update and Ephemeral say about which requests for pods the hook is asked in admission.
	Create, Update, Ephemeral bool
	Conditions                *requirement.Program // that must be true of a request; nil if there are none
	// Namespaces and Objects are the selectors.
	Namespaces, Objects restriction.Selector
}

// Hooks are those of all files: those that judge before initialisers, each in the order of the names of the files and
// then of the webhooks.
type Hooks []Hook

// Kind returns the kind of the file.
func (h *Hook) Kind() string {
	if h.Mutating {
		return InitialiserKind
	}
	return HookKind
}

// For returns the hooks that are asked about a pod at a stage of the node, of an edited pod those of all stages. What
// is not known can be selected.
func (h Hooks) For(s *admission.Subject) (asked Hooks) {
	stage := StageName(s.Stage)
	for i := range h {
		if h[i].AtNode() && (s.Edited || slices.Contains(h[i].Stages, stage)) && h[i].Selects(&s.Pod) {
			asked = append(asked, h[i])
		}
	}
	return asked
}

// StageName returns the name of a stage of the node in files; "" for others.
func StageName(s admission.Stage) string {
	switch s {
	case admission.StageContainer:
		return createContainer
	case admission.StageSandbox:
		return runPodSandbox
	case admission.StageAdmission, admission.StageTemplate, admission.StageImageReview:
	}
	return ""
}

// Selects reports whether the selectors may select a pod.
func (h *Hook) Selects(p *admission.Pod) bool {
	labels, all := p.NamespaceLabels.Effective()
	if !all && p.Namespace != "" {
		labels = map[string]string{nameLabel: p.Namespace}
	}
	own, known := p.Labels.Effective()
	return h.Namespaces.MaySelect(labels, all) && h.Objects.MaySelect(own, known ||
		p.Labels.State() != admission.StateUnknown)
}

// Undecided reports whether labels of the namespace that are not known decide about a pod that may be selected.
func (h *Hook) Undecided(p *admission.Pod) bool {
	_, all := p.NamespaceLabels.Effective()
	return !all && h.Namespaces.ReadsOther(nameLabel)
}

// AtNode reports whether the hook is asked at nodes.
func (h *Hook) AtNode() bool { return h.At != atAdmission && h.Create }

// Admits reports whether the hook is asked about requests of the API server for pods.
func (h *Hook) Admits(operation, subresource string) bool {
	create, update := operation == "CREATE" && h.Create, operation == "UPDATE" && h.Update
	if subresource != "" {
		create, update = false, operation == "UPDATE" && subresource == "ephemeralcontainers" && h.Ephemeral
	}
	return h.AtAdmission() && (create || update)
}

// AtAdmission reports whether the hook is asked by the webhook.
func (h *Hook) AtAdmission() bool { return h.At != atNode }

// AtNode reports whether a hook of the list is asked at nodes.
func (h Hooks) AtNode() bool { return slices.ContainsFunc(h, func(h Hook) bool { return h.AtNode() }) }

// FailurePolicy returns that of the file.
func (h *Hook) FailurePolicy() string {
	if h.FailOpen {
		return "Ignore"
	}
	return "Fail"
}

// Address returns where the hook is, without what can be secret.
func (h *Hook) Address() string {
	if h.Socket != "" {
		return "unix://" + h.Socket
	}
	u, err := url.Parse(h.URL)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host + u.EscapedPath()
}

// Log logs the hooks.
func (h Hooks) Log(log klog.Logger) {
	for i := range h {
		log.Info("Hook in use", "hook", h[i].Name, "file", h[i].File, "at", h[i].At, "stages", h[i].Stages,
			"address", h[i].Address(), "failurePolicy", h[i].FailurePolicy(), "timeout", h[i].Timeout, "audit", h[i].Audit)
	}
}

type hookDocument struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   dialectMetadata `json:"metadata"`
	Webhooks   []hookWebhook   `json:"webhooks"`
}

type hookWebhook struct {
	Name                    string                     `json:"name"`
	AdmissionReviewVersions []string                   `json:"admissionReviewVersions"`
	ClientConfig            hookClient                 `json:"clientConfig"`
	Rules                   []ivpResource              `json:"rules"`
	FailurePolicy           *string                    `json:"failurePolicy"`
	MatchPolicy             *string                    `json:"matchPolicy"`
	NamespaceSelector       *restriction.LabelSelector `json:"namespaceSelector"`
	ObjectSelector          *restriction.LabelSelector `json:"objectSelector"`
	SideEffects             *string                    `json:"sideEffects"`
	TimeoutSeconds          *int64                     `json:"timeoutSeconds"`
	MatchConditions         []ivpExpression            `json:"matchConditions"`
	ReinvocationPolicy      *string                    `json:"reinvocationPolicy"`
}

type hookClient struct {
	URL      string `json:"url"`
	Service  any    `json:"service"`
	CABundle string `json:"caBundle"`
}

type hookFile struct {
	checker
	name  string
	hooks Hooks
}

// LoadHooks reads files of one kind into Hooks: all of them or none; see [strictyaml.Load]. Each note begins with a
// file.
func LoadHooks(list []File) (hooks Hooks, notes []string, err error) {
	d := &strictyaml.Decoder{Rewrites: map[reflect.Type]func(*strictyaml.Mapping){
		reflect.TypeFor[hookDocument](): ignoreServerFields,
	}}
	all, err := strictyaml.Load(list, func(f File) (hookFile, string, []error) {
		h := parseHooks(d, f)
		h.Notes = strictyaml.WithLines(f.Data, h.Notes)
		return h, h.name, h.Errs
	}, strictyaml.NameTaken)
	for i, f := range all {
		for _, note := range f.Notes {
			notes = append(notes, list[i].Name+": "+note.Error())
		}
	}
	slices.SortFunc(all, func(a, b hookFile) int { return cmp.Compare(a.name, b.name) })
	for _, f := range all {
		hooks = append(hooks, f.hooks...)
	}
	return hooks, notes, cmp.Or(err, hooks.tooMany())
}

func (h Hooks) tooMany() error {
	if len(h) <= maxHooks {
		return nil
	}
	return fmt.Errorf("%s: webhooks: Too many: all files have %d; must have at most %d together", h[maxHooks].File, len(h),
		maxHooks)
}

func parseHooks(d *strictyaml.Decoder, f File) (out hookFile) {
	var doc hookDocument
	errs, err := d.Decode(f.Data, &doc)
	if err != nil {
		return hookFile{checker: checker{Errs: []error{err}}}
	}
	out.name, out.checker = doc.Metadata.Name, checker{Errs: errs, Incomplete: len(errs) > 0}
	common := Hook{File: f.Name, Mutating: doc.Kind == InitialiserKind}
	out.header(doc.APIVersion, doc.Kind, []string{HookVersion}, common.Kind(), out.name)
	out.annotations(doc.Metadata.Annotations, &common)
	out.RequiredIf(len(doc.Webhooks) == 0, field.NewPath("webhooks"), "must have at least one")
	for i := range doc.Webhooks {
		at, h := field.NewPath("webhooks").Index(i), common
		out.webhook(at, &doc.Webhooks[i], &h)
		h.Name = out.name + "/" + doc.Webhooks[i].Name
		if slices.ContainsFunc(doc.Webhooks[:i], func(o hookWebhook) bool { return o.Name == doc.Webhooks[i].Name }) {
			out.Errs = append(out.Errs, field.Duplicate(at.Child("name"), doc.Webhooks[i].Name))
		}
		if h.AtNode() || h.AtAdmission() && (h.Create || h.Update || h.Ephemeral) {
			out.hooks = append(out.hooks, h)
		} else {
			out.Note(at.Child("rules"), "the webhook is never asked, because it is about no creation of pods")
		}
	}
	if !out.Incomplete && len(doc.Webhooks) > 0 && len(out.hooks) == 0 {
		out.Required(field.NewPath("webhooks").Index(0).Child("rules"), "must have operation CREATE of resource pods, "+
			"apiGroup \"\" and apiVersion v1; nothing else reaches a node")
	}
	return out
}

// annotations reads those with the prefix ownAnnotation, which are settings that the format of the file does not have.
func (c *checker) annotations(all map[string]string, h *Hook) {
	known := []string{"at", "client-certificate", "mode", "stages"}
	if h.At, h.Stages = atNode, []string{createContainer}; h.Mutating {
		h.At, h.Stages, known = atAdmission, nil, []string{"client-certificate", "mode"}
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value, at := all[key], field.NewPath("metadata", "annotations").Key(key)
		name, own := strings.CutPrefix(key, ownAnnotation)
		switch {
		case !own:
		case !slices.Contains(known, name):
			c.Errs = append(c.Errs, fmt.Errorf("%s: unknown annotation; with this prefix %s are known", at,
				strings.Join(known, ", ")))
		case name == "at":
			h.At = c.OneOf(at, &value, atNode, atAdmission, atBoth)
		case name == "mode":
			h.Audit = c.OneOf(at, &value, "Enforce", "Audit") == "Audit"
		case name == "stages":
			h.Stages = strings.Split(value, ",")
			for i, s := range h.Stages {
				s = strings.TrimSpace(s)
				h.Stages[i] = c.OneOf(at, &s, createContainer, runPodSandbox)
			}
		case name == "client-certificate":
			c.InvalidIf(!absolute(value), at, value, "must be the absolute path of a folder with tls.crt and tls.key")
			h.Certificate = value
		}
	}
}

func absolute(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && path != "/"
}

func (c *checker) webhook(at *field.Path, w *hookWebhook, h *Hook) {
	for _, detail := range validation.IsDNS1123Subdomain(w.Name) {
		c.Invalid(at.Child("name"), w.Name, detail)
	}
	c.InvalidIf(!c.Incomplete && !slices.Contains(w.AdmissionReviewVersions, "v1"), at.Child("admissionReviewVersions"),
		strings.Join(w.AdmissionReviewVersions, ", "), "must have v1")
	c.client(at.Child("clientConfig"), &w.ClientConfig, h)
	c.rules(at.Child("rules"), w.Rules, h)
	h.FailOpen = c.OneOf(at.Child("failurePolicy"), w.FailurePolicy, "Fail", "Ignore") == "Ignore"
	c.OneOf(at.Child("matchPolicy"), w.MatchPolicy, "Equivalent", "Exact")
	switch again := at.Child("reinvocationPolicy"); {
	case w.ReinvocationPolicy == nil:
	case !h.Mutating:
		c.Errs = append(c.Errs, fmt.Errorf("%s: unknown field; %s has it", again, InitialiserKind))
	case c.OneOf(again, w.ReinvocationPolicy, "Never", "IfNeeded") == "IfNeeded":
		c.Note(again, "no effect; an initialiser is asked once in each request, and an API server may send two for a pod")
	}
	if w.SideEffects == nil {
		c.Required(at.Child("sideEffects"), "must be None or NoneOnDryRun")
	} else {
		c.OneOf(at.Child("sideEffects"), w.SideEffects, "None", "NoneOnDryRun")
	}
	h.Timeout = 10 * time.Second
	if s := w.TimeoutSeconds; s != nil {
		c.InvalidIf(*s < 1 || *s > 30, at.Child("timeoutSeconds"), *s, "must be 1 to 30")
		h.Timeout = time.Duration(min(max(*s, 1), 30)) * time.Second
	}
	h.Namespaces = c.selector(at.Child("namespaceSelector"), w.NamespaceSelector)
	h.Objects = c.selector(at.Child("objectSelector"), w.ObjectSelector)
	if len(w.MatchConditions) > 0 {
		compiler := ivpCompiler{dialectPolicy: dialectPolicy{checker: *c}}
		h.Conditions = &requirement.Program{OnPods: true, Request: []string{
			"dryRun", "kind", "name", "namespace", "object", "oldObject", "operation", "requestKind", "requestResource",
			"requestSubResource", "resource", "subResource", "uid",
		}, Conditions: compiler.expressions(at.Child("matchConditions"), w.MatchConditions, false)}
		*c = compiler.checker
		if h.AtNode() {
			h.Conditions.Known = knownAtNode(slices.Contains(h.Stages, runPodSandbox))
		} else {
			h.Conditions.Request = append(h.Conditions.Request, "userInfo")
		}
	}
}

func (c *checker) selector(at *field.Path, s *restriction.LabelSelector) restriction.Selector {
	compiled, errs := restriction.CompileSelector(at, s)
	for _, err := range errs {
		c.Errs = append(c.Errs, err)
	}
	return compiled
}

// knownAtNode returns the paths of the fields that a node knows of every pod, without the pod source, too.
func knownAtNode(sandboxes bool) []string {
	paths := []string{
		"kind", "metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid",
		"spec.hostIPC", "spec.hostNetwork", "spec.hostPID", "spec.nodeName",
	}
	if sandboxes {
		return paths
	}
	for _, name := range []string{
		"image", "name", "securityContext.allowPrivilegeEscalation", "securityContext.capabilities",
		"securityContext.privileged", "securityContext.readOnlyRootFilesystem", "securityContext.runAsGroup",
		"securityContext.seLinuxOptions",
	} {
		paths = append(paths, "spec.containers[*]."+name)
	}
	return paths
}

// rules reads as much of rules as is about pods.
func (c *checker) rules(at *field.Path, rules []ivpResource, h *Hook) {
	has := func(list []string, names ...string) bool {
		return slices.ContainsFunc(list, func(s string) bool { return slices.Contains(names, s) })
	}
	for i, r := range rules {
		scope := c.OneOf(at.Index(i).Child("scope"), r.Scope, "*", "Namespaced", "Cluster")
		pods := has(r.APIGroups, "", "*") && has(r.APIVersions, "v1", "*") && scope != "Cluster"
		create, update := has(r.Operations, "CREATE", "*"), has(r.Operations, "UPDATE", "*") && !h.Mutating
		whole := pods && has(r.Resources, "pods", "*", "*/*")
		ephemeral := pods && update && has(r.Resources, "pods/ephemeralcontainers", "pods/*", "*/*",
			"*/ephemeralcontainers")
		h.Create, h.Update = h.Create || whole && create, h.Update || whole && update
		h.Ephemeral = h.Ephemeral || ephemeral
		about := "hooks about pods that are created or updated"
		if h.Mutating {
			about = "initialisers about pods that are created"
		}
		c.NoteIf(!(whole && (create || update)) && !ephemeral, at.Index(i), "no effect; pullgate asks "+about)
		resize := pods && update && has(r.Resources, "pods/resize", "pods/*", "*/*", "*/resize")
		c.NoteIf(resize, at.Index(i).Child("resources"),
			"pods/resize has no effect; pullgate asks no hook about the resources of a pod that runs")
	}
}

func (c *checker) client(at *field.Path, in *hookClient, h *Hook) {
	if in.Service != nil {
		c.Invalid(at.Child("service"), "", "must be absent, because a node does not resolve services; write url")
		return
	}
	const want = "must be https://HOST/PATH, or unix:///PATH.sock?path=/PATH"
	invalid := func(name, why string) { // without the value, which can have a password or a token
		c.Errs = append(c.Errs, fmt.Errorf("%s: Invalid value: %s", at.Child(name), why))
	}
	u, err := url.Parse(in.URL)
	switch {
	case in.URL == "":
		c.Required(at.Child("url"), want)
	case err != nil || u.Fragment != "" || u.User != nil:
		invalid("url", want+", without user and fragment")
	case u.Scheme == "https" && u.Host != "":
		h.URL = in.URL
	case u.Scheme == "unix":
		query, err := url.ParseQuery(u.RawQuery)
		path := cmp.Or(query.Get("path"), "/")
		delete(query, "path")
		if u.Host != "" || !absolute(u.Path) || err != nil || len(query) > 0 || !strings.HasPrefix(path, "/") {
			invalid("url", "must be unix:// and the absolute path of a socket, and only path=/PATH in the query")
		}
		if in.CABundle != "" || h.Certificate != "" {
			invalid("url", "must be https if there is a caBundle or a client certificate")
		}
		h.Socket, h.URL = u.Path, (&url.URL{Scheme: "http", Host: "localhost", Path: path}).String()
	default:
		invalid("url", want)
	}
	text, err := base64.StdEncoding.DecodeString(in.CABundle)
	if h.CABundle = string(text); in.CABundle != "" && (err != nil || !x509.NewCertPool().AppendCertsFromPEM(text)) {
		invalid("caBundle", "must be certificates in PEM, in base64")
	}
}

// A HookAnswer is what a hook, or its failure policy, says about a pod.
type HookAnswer struct {
	Hook             string // its name
	Allowed          bool   // if there is no valid answer, by the failure policy
	Code             int32  // of a denial; 0 means 403
	Message          string // of a denial, or why the hook was not asked; one line
	Failure          string // why there is no valid answer, one line; "" if there is one
	AuditAnnotations map[string]string
	Warnings         []string
	Patch            []byte // of an initialiser, a JSON patch; "" if it changes nothing
	Took             time.Duration
	Asked            time.Duration // how much of it the hook itself took
}

// String returns a sentence for users, the same at the node and in the webhook.
func (a HookAnswer) String() string {
	after := fmt.Sprintf("after %v", a.Took.Round(time.Millisecond))
	switch {
	case a.Failure != "" && a.Allowed:
		return fmt.Sprintf("hook %s gave no valid answer, %s: %s; admitted, because its failurePolicy is Ignore", a.Hook,
			after,
			a.Failure)
	case a.Failure != "":
		return fmt.Sprintf("hook %s gave no valid answer, %s: %s; denied", a.Hook, after, a.Failure)
	case a.Allowed && a.Message != "":
		return fmt.Sprintf("hook %s was not asked: %s", a.Hook, a.Message)
	case a.Allowed:
		return fmt.Sprintf("hook %s allowed it, %s", a.Hook, after)
	}
	return fmt.Sprintf("hook %s denied it: %s", a.Hook, cmp.Or(a.Message, "it gave no reason"))
}

// Status returns the HTTP status of a denial.
func (a HookAnswer) Status() int32 {
	if a.Code < 400 || a.Code > 599 {
		return 403
	}
	return a.Code
}

// Finding returns the answer of a hook as a finding.
func (h *Hook) Finding(a HookAnswer) admission.Finding {
	f := admission.Finding{
		Validator: admission.HookValidator, Policy: h.Name, Answer: admission.Admit, Message: a.String(), Audit: h.Audit,
		FailedOpen: a.Allowed && a.Failure != "", AuditAnnotations: a.AuditAnnotations, Duration: a.Took,
	}
	switch {
	case a.Allowed:
	case a.Failure != "":
		f.Answer, f.Reason = admission.Deny, admission.HookUnavailable
	default:
		f.Answer, f.Reason = admission.Deny, admission.HookDenied
	}
	return f
}
