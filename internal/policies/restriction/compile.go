package restriction

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

// compile checks a policy and compiles its rules. The rules are for use only if there is no error.
func compile(t *table, p *PodRestriction) (*policy, field.ErrorList) {
	out := &policy{name: p.Metadata.Name, source: Binding{Mode: BindingModeDrop}, restricts: map[string]bool{}}
	c := &compiler{table: t, out: out}
	c.header(p)
	out.audit = c.mode(p.Metadata.Annotations)
	if b := p.Binding; b != nil {
		c.binding(field.NewPath("binding"), b, out)
	}
	at := place{"spec", "spec"}
	if m := p.Spec.Metadata; m != nil {
		c.metadata(at.child("metadata"), m, &out.rule)
	}
	if s := p.Spec.Spec; s != nil {
		c.podSpec(at.child("spec"), s, &out.rule)
	}
	return out, c.errs
}

// A compiler compiles one policy, and collects its errors.
type compiler struct {
	table *table
	errs  field.ErrorList
	out   *policy
}

// A place is a position in a policy: its path, and the path of its Field, which has no indices.
type place struct{ path, field string }

func (p place) child(name string) place {
	field := p.field + "." + name
	if p.path == p.field {
		return place{field, field}
	}
	return place{p.path + "." + name, field}
}

// index returns the place of an element of a list.
func (p place) index(i int) place {
	return place{p.path + "[" + strconv.Itoa(i) + "]", p.field + "[]"}
}

// part returns the place of a part of a field that is known as one.
func (p place) part(name string) place { return p.child(name).as(p.field) }

// as returns the same place, about the field of another one.
func (p place) as(field string) place { return place{p.path, field} }

// of returns the path for errors about parts of the place. It is made only for them: a policy has many places.
func (p place) of(parts ...string) *field.Path { return field.NewPath(p.path, parts...) }

func (c *compiler) invalid(p *field.Path, value any, detail string) {
	c.errs = append(c.errs, field.Invalid(p, value, detail))
}

// leaf returns the common part of the rules of a place.
func (c *compiler) leaf(at place, r PointerRestriction, allowed string) leaf {
	f := c.table.byPath[at.field]
	if f == nil {
		panic("restriction: no entry in the table of fields for " + at.field)
	}
	c.out.restricts[at.field] = true
	if r.ForbidNil && r.RequireNil {
		c.invalid(at.of(), "forbidNil, requireNil", "both are true, so no pod matches; set at most one")
	}
	switch {
	case r.RequireNil:
		allowed = "nil"
	case r.ForbidNil:
		allowed += ", not nil"
	}
	return leaf{path: at.path, field: f, allowed: strings.TrimPrefix(allowed, ", "), forbidNil: r.ForbidNil, requireNil: r.RequireNil, needsState: r.ForbidNil || r.RequireNil}
}

// keep adds a leaf to those of the policy.
func (c *compiler) keep(l *leaf) { c.out.leaves = append(c.out.leaves, l) }

func (c *compiler) header(p *PodRestriction) {
	if p.APIVersion != APIVersion {
		c.errs = append(c.errs, field.NotSupported(field.NewPath("apiVersion"), p.APIVersion, []string{APIVersion, ProposedAPIVersion}))
	}
	if p.Kind != Kind {
		detail := "must be " + Kind
		if strictyaml.Nearest(p.Kind, []string{Kind}) != "" {
			detail = "unknown kind; did you mean " + Kind + "?"
		}
		c.invalid(field.NewPath("kind"), p.Kind, detail)
	}
	for _, detail := range validation.IsDNS1123Subdomain(p.Metadata.Name) {
		c.invalid(field.NewPath("metadata", "name"), p.Metadata.Name, detail)
	}
}

// mode reports whether a policy only reports.
func (c *compiler) mode(annotations map[string]string) (audit bool) {
	mode, ok := annotations[ModeAnnotation]
	if ok && mode != ModeAudit && mode != ModeEnforce {
		c.errs = append(c.errs, field.NotSupported(field.NewPath("metadata", "annotations").Key(ModeAnnotation), mode, []string{ModeAudit, ModeEnforce}))
	}
	return mode == ModeAudit
}

func (c *compiler) binding(p *field.Path, b *Binding, out *policy) {
	switch b.Mode {
	case BindingModeAccept:
		out.accept = true
	case "", BindingModeDrop:
	default:
		c.errs = append(c.errs, field.NotSupported(p.Child("mode"), b.Mode, []BindingMode{BindingModeAccept, "Allow", BindingModeDrop}))
	}
	out.source = *b
	if b.Mode == "" {
		out.source.Mode = BindingModeDrop
	}
	notEmpty(c, place{path: p.String()}, "namespaces", b.Namespaces)
	for i, ns := range b.Namespaces {
		for _, detail := range validation.IsDNS1123Label(ns) {
			c.invalid(p.Child("namespaces").Index(i), ns, detail)
		}
	}
	out.binding.namespaces = b.Namespaces
	if b.NamespaceSelector != nil {
		compiled := c.selector(p.Child("namespaceSelector"), b.NamespaceSelector)
		out.binding.selector = &compiled
		if len(compiled) > 0 {
			c.keep(&leaf{path: "binding.namespaceSelector", field: c.table.byPath[pathNamespaceSelector]})
		}
	}
}

func (c *compiler) selector(p *field.Path, s *LabelSelector) selector {
	compiled := selector{}
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		value := s.MatchLabels[key]
		c.label(p.Child("matchLabels").Key(key), key, value)
		compiled = append(compiled, condition{key: key, values: []string{value}})
	}
	for i, e := range s.MatchExpressions {
		at := p.Child("matchExpressions").Index(i)
		c.label(at, e.Key, e.Values...)
		switch e.Operator {
		case "In", "NotIn":
			if len(e.Values) == 0 {
				c.errs = append(c.errs, field.Required(at.Child("values"), "In and NotIn need values"))
			}
			compiled = append(compiled, condition{key: e.Key, values: e.Values, negate: e.Operator == "NotIn"})
		case "Exists", "DoesNotExist":
			if len(e.Values) > 0 {
				c.invalid(at.Child("values"), e.Values, "must be absent with Exists and DoesNotExist")
			}
			compiled = append(compiled, condition{key: e.Key, negate: e.Operator == "DoesNotExist"})
		default:
			c.errs = append(c.errs, field.NotSupported(at.Child("operator"), e.Operator, []string{"In", "NotIn", "Exists", "DoesNotExist"}))
		}
	}
	return compiled
}

func (c *compiler) label(p *field.Path, key string, values ...string) {
	for _, detail := range validation.IsQualifiedName(key) {
		c.invalid(p, key, detail)
	}
	for _, v := range values {
		for _, detail := range validation.IsValidLabelValue(v) {
			c.invalid(p, v, detail)
		}
	}
}

func (c *compiler) metadata(at place, m *ObjectMetaRestriction, out *podRule) {
	out.name = c.str(at.child("name"), m.Name)
	out.labels = c.stringMap(at, "labels", m.Labels)
	out.annotations = c.stringMap(at, "annotations", m.Annotations)
}

func (c *compiler) podSpec(at place, s *PodSpecRestriction, out *podRule) {
	out.restartPolicy = c.str(at.child("restartPolicy"), s.RestartPolicy)
	out.dnsPolicy = c.str(at.child("dnsPolicy"), s.DNSPolicy)
	out.nodeSelector = c.stringMap(at, "nodeSelector", s.NodeSelector)
	out.activeDeadline = c.number(at, "activeDeadlineSeconds", s.ActiveDeadlineSeconds)
	out.terminationGrace = c.number(at, "terminationGracePeriodSeconds", s.TerminationGracePeriodSeconds)
	out.automountToken = c.boolean(at, "automountServiceAccountToken", s.AutomountServiceAccountToken)
	if sc := s.SecurityContext; sc != nil {
		at := at.child("securityContext")
		out.hostNetwork = c.boolean(at, "hostNetwork", sc.HostNetwork)
		out.hostPID = c.boolean(at, "hostPID", sc.HostPID)
		out.hostIPC = c.boolean(at, "hostIPC", sc.HostIPC)
		out.shareProcesses = c.boolean(at, "shareProcessNamespace", sc.ShareProcessNamespace)
		out.supplementalGroups = c.number(at, "supplementalGroups", sc.SupplementalGroups)
		out.fsGroup = c.number(at, "fsGroup", sc.FSGroup)
	}
	out.volumes = list(c, at, "volumes", s.Volumes, c.volume)
	out.containers = list(c, at, "containers", s.Containers, c.container)
	out.initContainers = list(c, at, "initContainers", s.InitContainers, c.container)
	if s.InitContainers == nil {
		out.initContainers = out.containers
	}
}

// list compiles the entries of a list, of which one must match.
func list[T, R any](c *compiler, at place, name string, entries []T, compile func(place, *T) R) []R {
	if entries == nil {
		return nil
	}
	notEmpty(c, at, name, entries)
	at = at.child(name)
	rules := make([]R, 0, len(entries))
	for i := range entries {
		rules = append(rules, compile(at.index(i), &entries[i]))
	}
	return rules
}

// notEmpty refuses a list of what is allowed, or denied, that is present and empty.
func notEmpty[T any](c *compiler, at place, name string, list []T) {
	if list != nil && len(list) == 0 {
		c.invalid(at.of(name), "[]", "must have at least one entry; leave the field out to allow everything")
	}
}

func (c *compiler) container(at place, r *ContainerRestriction) containerRule {
	at = at.as(pathContainers)
	c.keep(&leaf{path: at.path, field: c.table.byPath[pathContainers]})
	c.out.restricts[pathContainers] = true
	out := containerRule{imagePullPolicy: c.str(at.child("imagePullPolicy"), r.ImagePullPolicy)}
	out.image = list(c, at, "image", r.Image, c.image)
	if len(r.Image) > 0 {
		images := at.child("image")
		out.imageUnknown = c.leaf(images.as(images.field+"[]"), PointerRestriction{}, "an image name in the list")
	}
	if sc := r.SecurityContext; sc != nil {
		c.security(at.child("securityContext"), sc, &out)
	}
	return out
}

func (c *compiler) security(at place, sc *SecurityContextRestriction, out *containerRule) {
	out.privileged = c.boolean(at, "privileged", sc.Privileged)
	out.runAsNonRoot = c.boolean(at, "runAsNonRoot", sc.RunAsNonRoot)
	out.readOnlyRoot = c.boolean(at, "readOnlyRootFilesystem", sc.ReadOnlyRootFilesystem)
	out.allowEscalation = c.boolean(at, "allowPrivilegeEscalation", sc.AllowPrivilegeEscalation)
	out.runAsUser = c.number(at, "runAsUser", sc.RunAsUser)
	out.runAsGroup = c.number(at, "runAsGroup", sc.RunAsGroup)
	if caps := sc.Capabilities; caps != nil {
		at := at.child("capabilities")
		l := c.leaf(at, caps.PointerRestriction, "capabilities")
		out.capabilities = &l
		c.keep(&l)
		out.add = c.stringList(at, "add", caps.Add, addedCapability)
		if out.add != nil && out.add.values != nil && out.add.values.blacklist != nil {
			out.add.values.blacklist = append(out.add.values.blacklist, allCapabilities)
		}
		out.drop = c.stringList(at, "drop", caps.Drop, strings.ToUpper)
	}
	if se := sc.SELinuxOptions; se != nil {
		at := at.child("seLinuxOptions")
		l := c.leaf(at, se.PointerRestriction, "SELinux options")
		out.seLinux = &l
		c.keep(&l)
		out.seLinuxUser = c.str(at.part("user"), se.User)
		out.seLinuxRole = c.str(at.part("role"), se.Role)
		out.seLinuxType = c.str(at.part("type"), se.Type)
		out.seLinuxLevel = c.str(at.part("level"), se.Level)
	}
}

// allCapabilities in a list to add adds those that a policy denies.
const allCapabilities = "ALL"

// addedCapability returns the name that runtimes read in a capability to add. Some add the prefix CAP_ to every name,
// others only where it is missing, so a name with the prefix may add the capability.
func addedCapability(name string) string {
	return strings.TrimPrefix(strings.ToUpper(name), "CAP_")
}

func (c *compiler) image(at place, r *ImageRestriction) imageRule {
	registry := c.str(at.part("registry"), r.Registry)
	if registry != nil {
		registry.whitelist = mapped(registry.whitelist, registryOf)
		registry.blacklist = mapped(registry.blacklist, registryOf)
	}
	return imageRule{
		registry: registry,
		image:    c.str(at.part("image"), r.Image),
		tag:      c.str(at.part("tag"), r.Tag),
	}
}

func (c *compiler) volume(at place, r *VolumeRestriction) volumeRule {
	out := volumeRule{leaf: c.leaf(at, PointerRestriction{}, ""), CollectionRestriction: c.collection(at, r.CollectionRestriction)}
	out.allowed = cmp.Or(out.describe(), "volumes that match the list")
	if r.ForbidEmpty {
		c.keep(&leaf{path: at.path, field: out.field, needsState: true})
	}
	out.volumeType = c.str(at.child("volumeType"), r.VolumeType)
	if m := r.Mount; m != nil {
		at := at.child("mount")
		out.readOnly = c.boolean(at, "readOnly", m.ReadOnly)
		out.propagation = c.str(at.child("mountPropagation"), m.MountPropagation)
	}
	if h := r.HostPath; h != nil {
		at := at.child("hostPath")
		out.hostPath = c.paths(at, "path", h.Path)
		out.hostPathType = c.str(at.child("type"), h.Type)
	}
	return out
}
