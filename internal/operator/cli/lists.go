package cli

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const mostOfPage = 100

// A ListPage is an answer with a page of a list. Its first field has the entries.
type ListPage interface {
	proto.Message
	GetNextPageToken() string
}

// List requests pages until there are limit entries, or all if limit is 0. It returns the last page with the entries of
// all of them, and their number. The NextPageToken of the answer is not empty if there are more entries. List sets the
// size and the token of the request. ask is the method of the list.
func List[Q proto.Message, A ListPage](ctx context.Context, api adminv1.PullRecordsClient, limit int, request Q,
	ask func(adminv1.PullRecordsClient, context.Context, Q, ...grpc.CallOption) (A, error),
) (answer A, count int, err error) {
	to := request.ProtoReflect()
	fields := to.Descriptor().Fields()
	var all []protoreflect.Value
	for token := ""; ; {
		size := mostOfPage
		if limit > 0 {
			size = min(size, limit-len(all))
		}
		to.Set(fields.ByName("page_size"), protoreflect.ValueOfInt32(int32(size)))
		to.Set(fields.ByName("page_token"), protoreflect.ValueOfString(token))
		if answer, err = ask(api, ctx, request); err != nil {
			return answer, 0, err
		}
		page := answer.ProtoReflect()
		entries := page.Mutable(page.Descriptor().Fields().ByNumber(1)).List()
		for i := range entries.Len() {
			all = append(all, entries.Get(i))
		}
		next := answer.GetNextPageToken()
		switch {
		case next == "" || limit > 0 && len(all) >= limit:
			entries.Truncate(0)
			for _, e := range all {
				entries.Append(e)
			}
			return answer, len(all), nil
		case next == token:
			return answer, 0, errors.New("pullgated returns the same page again")
		}
		token = next
	}
}

// Images prints which pods may use which image, a line for each repository of an image.
func (p *Page) Images(r *adminv1.ListImagesResponse) {
	var rows [][]string
	for _, i := range r.GetImages() {
		known := repositories(i)
		for _, k := range known {
			since := k.record.GetCreated()
			if since == nil {
				since = k.mark.GetSet()
			}
			rows = append(rows, []string{
				p.ID(i.GetImageId()), presence(i.GetPresence()), k.repository, tags(i, k.repository), k.access(), p.age(since),
				p.age(k.record.GetLastUsed()),
			})
		}
		if len(known) == 0 {
			rows = append(rows, []string{p.ID(i.GetImageId()), presence(i.GetPresence()), "", "", "", "", ""})
		}
	}
	p.Table([]string{"IMAGE ID", "PRESENT", "REPOSITORY", "TAG", "ACCESS", "SINCE", "LAST USED"}, rows)
}

func tags(i *adminv1.Image, repository string) string {
	var all []string
	for _, name := range i.GetNames() {
		if tag, ok := strings.CutPrefix(name, repository+":"); ok {
			all = append(all, tag)
		}
	}
	return strings.Join(all, ", ")
}

// Image prints everything about one image.
func (p *Page) Image(i *adminv1.Image) {
	p.Line("Image    %s", i.GetImageId())
	p.Line("Present  %s", presence(i.GetPresence()))
	for n, name := range i.GetNames() {
		p.Line("%-8s %s", map[bool]string{true: "Names"}[n == 0], name)
	}
	for _, k := range repositories(i) {
		p.Gap()
		p.Paint(Bold, "%s", k.repository)
		p.rights(i.GetRights(), k.repository)
		if k.mark != nil {
			p.Line("  Preloaded %s, set by %s.", p.lasting(k.mark.GetSet()), origin(k.mark.GetOrigin()))
		}
		switch {
		case k.unreadable:
			p.Line("  Its record is unreadable: it needs proof under every policy.")
		case k.record != nil:
			p.record(k.record)
		case k.mark == nil:
			p.Line("  Untracked: it needs proof.")
		}
	}
}

// rights prints who may use an image under a repository, and by which right.
func (p *Page) rights(all []*adminv1.ImageRight, repository string) {
	var rows [][]string
	everyone := "every pod"
	for _, r := range all {
		if r.GetRepository() == repository && r.GetGrant() == "Fence" && !r.GetAudit() {
			everyone = "every pod that no Fence excludes"
		}
	}
	for _, r := range all {
		if r.GetRepository() == repository {
			rows = append(rows, append([]string{"  " + r.GetRight()}, p.rightRow(r, everyone)...))
		}
	}
	if len(rows) == 0 {
		return
	}
	p.Table([]string{"  RIGHT", "WHO", "BY"}, rows)
}

// rightRow returns who has a right, and by what.
func (p *Page) rightRow(r *adminv1.ImageRight, everyone string) []string {
	var who []string
	for _, n := range r.GetNamespaces() {
		who = append(who, "namespace "+n)
	}
	for _, a := range r.GetServiceAccounts() {
		who = append(who, "service account "+a)
	}
	if r.GetStaticPods() {
		who = append(who, "static pods")
	}
	switch {
	case r.GetRight() == "proof":
		who = append(who, "pods with the credential "+p.ID(r.GetBy()))
	case r.GetGrant() == "Fence":
		who[0] = "only " + who[0]
	case len(who) == 0:
		who = append(who, everyone)
	}
	by := r.GetBy()
	if r.GetRight() == "proof" {
		by = secretNames(r.GetSecrets())
	}
	if r.GetGrant() != "" {
		by += ", " + r.GetGrant()
	}
	for _, note := range []struct {
		is   bool
		text string
	}{
		{r.GetWaits(), "once a pod proves access"},
		{r.GetInGrace(), "while the registry is not asked"},
		{r.GetAudit(), "audit"},
	} {
		if note.is {
			by += ", " + note.text
		}
	}
	return []string{strings.Join(who, ", "), by}
}

// ImageAccess prints what other files of kind ImageAccess would change.
func (p *Page) ImageAccess(r *adminv1.TestImageAccessResponse) {
	var rows [][]string
	for _, of := range []struct {
		change string
		rights []*adminv1.ImageRight
	}{{"+", r.GetGained()}, {"-", r.GetLost()}} {
		for _, right := range of.rights {
			rows = append(rows, append([]string{of.change, right.GetRepository()}, p.rightRow(right, "")...))
		}
	}
	if len(rows) > 0 {
		p.Table([]string{"CHANGE", "REPOSITORY", "WHO", "BY"}, rows)
		p.Gap()
	}
	if len(r.GetPods()) == 0 {
		p.Line("No pod on this node would change.")
		return
	}
	head := []string{"POD", "CONTAINER", "IMAGE", "NOW", "THEN"}
	tableOf(p, head, r.GetPods(), func(c *adminv1.PodImageChange) []string {
		i := c.GetNow()
		return []string{
			i.GetNamespace() + "/" + i.GetPod(), i.GetContainer(), i.GetImage(), i.GetState(), c.GetState(),
		}
	})
	if r.GetMore() > 0 {
		p.Line("There are %d more.", r.GetMore())
	}
}

func (p *Page) record(r *adminv1.Record) {
	switch {
	case r.GetOpen():
		p.Line("  Open to every pod %s.", p.lasting(r.GetOpened()))
	case len(r.GetOpenTo()) > 0:
		p.Line("  Open to the pods of %s %s, by %s.", strings.Join(r.GetOpenTo(), ", "), p.lasting(r.GetOpened()),
			openedBy(r))
	case len(r.GetProofs()) == 0:
		p.Line("  No credential has proved access: it needs proof.")
	}
	if r.GetOpen() && r.GetByNode() != nil && r.GetAnonymous() == nil {
		p.Line("  Opened by %s.", openedBy(r))
	}
	line := "  Recorded " + p.ago(r.GetCreated()) + ", last used " + p.ago(r.GetLastUsed())
	if r.GetRevoked() != nil {
		line += ", proofs or a preloaded mark revoked " + p.ago(r.GetRevoked())
	}
	p.Line("%s.", line)
	if len(r.GetProofs()) == 0 {
		return
	}
	head := []string{"  CREDENTIAL", "SECRETS", "FIRST PROVED", "LAST PROVED", "LAST USED", "EXPIRES", "REFUSED"}
	tableOf(p, head, r.GetProofs(), func(proof *adminv1.Proof) []string {
		return []string{
			"  " + p.ID(proof.GetCredentialId()), secretNames(proof.GetSecrets()), p.age(proof.GetFirstProved()),
			p.age(proof.GetLastProved()),
			p.age(proof.GetLastUsed()), p.expiry(proof.GetExpires()), p.age(proof.GetDenied()),
		}
	})
	for _, proof := range r.GetProofs() {
		if carriedOver(proof) {
			p.Prose("  ", "%s is carried over from an earlier content of its Secret, not yet confirmed by the registry.",
				p.ID(proof.GetCredentialId()))
		}
	}
}

func openedBy(r *adminv1.Record) string {
	if r.GetByNode() == nil {
		return "an earlier version that did not note how"
	}
	return "credentials of the node"
}

func (p *Page) expiry(expires *timestamppb.Timestamp) string {
	return strings.TrimPrefix(p.ago(expires), "at ")
}

// Intents prints the pulls without a known result.
func (p *Page) Intents(r *adminv1.ListIntentsResponse) {
	head := []string{"REPOSITORY", "NAME", "STATE", "BEGUN", "ANSWER LOST"}
	tableOf(p, head, r.GetIntents(), func(i *adminv1.Intent) []string {
		state := map[bool]string{true: "in progress", false: "answer lost"}[i.GetEnded() == nil]
		return []string{i.GetRepository(), i.GetName(), state, p.age(i.GetBegun()), p.age(i.GetEnded())}
	})
}

// Grants prints which pods may use which images.
func (p *Page) Grants(r *adminv1.ListGrantsResponse) { p.grants(r.GetGrants()) }

func (p *Page) grants(grants []*adminv1.Grant) {
	tableOf(p, []string{"POD", "UID", "REPOSITORY", "IMAGE ID", "REASON", "CREDENTIAL"}, grants,
		func(g *adminv1.Grant) []string {
			return []string{
				coordinates(g.GetPod()), g.GetPod().GetUid(), g.GetPair().GetRepository(), p.ID(g.GetPair().GetImageId()),
				g.GetReason(), p.ID(g.GetCredentialId()),
			}
		})
}

// Pods prints the images of pods, and what would happen to them.
func (p *Page) Pods(r *adminv1.ListPodsResponse) {
	tableOf(p, []string{"POD", "CONTAINER", "IMAGE", "STATE", "PULL SECRET"}, r.GetImages(),
		func(i *adminv1.PodImage) []string {
			return []string{i.GetNamespace() + "/" + i.GetPod(), i.GetContainer(), i.GetImage(), i.GetState(), pullSecrets(i)}
		})
	if !r.GetEnforcing() {
		p.Prose("", "This node does not enforce: a missing proof denies nothing.")
	}
	if !r.GetPoliciesEnforcing() && slices.ContainsFunc(r.GetImages(),
		func(i *adminv1.PodImage) bool { return strings.HasPrefix(i.GetState(), "denied by ") }) {
		p.Prose("", "Policies are not enforced (admission.enforce is false): they deny nothing.")
	}
}

func pullSecrets(i *adminv1.PodImage) string {
	if i.GetState() != "needs proof" {
		return ""
	}
	otherwise := map[bool]string{true: "none", false: "unknown"}[i.GetPullSecretsKnown()]
	return cmp.Or(strings.Join(i.GetPullSecrets(), ", "), otherwise)
}

// Preloaded prints the preloaded images.
func (p *Page) Preloaded(r *adminv1.ListPreloadedResponse) { p.marks(r.GetMarks()) }

func (p *Page) marks(marks []*adminv1.Mark) {
	tableOf(p, []string{"REPOSITORY", "IMAGE ID", "SINCE", "SET BY"}, marks, func(m *adminv1.Mark) []string {
		return []string{m.GetPair().GetRepository(), p.ID(m.GetPair().GetImageId()), p.age(m.GetSet()), m.GetOrigin()}
	})
}

// Endorsements prints for which images signatures were verified. Columns that few nodes need are there if one has
// a value.
func (p *Page) Endorsements(r interface{ GetEndorsements() []*adminv1.Endorsement }) {
	head := []string{"REPOSITORY", "IMAGE ID", "RULES", "REQUIREMENT", "SIGNERS", "VERIFIED", "EXPIRES"}
	attested, drifted := false, false
	for _, e := range r.GetEndorsements() {
		attested, drifted = attested || len(e.GetAttestations()) > 0, drifted || e.GetDrift() != nil
	}
	if attested {
		head = append(head, "ATTESTATIONS")
	}
	if drifted {
		head = append(head, "DRIFT")
	}
	tableOf(p, head, r.GetEndorsements(), func(e *adminv1.Endorsement) []string {
		rules, expires := strings.Join(e.GetRules(), "; "), p.expiry(e.GetExpires())
		switch {
		case e.GetVerified() == nil:
			rules, expires = "unreadable, does not count", ""
		case rules == "":
			rules = "none in use"
		}
		row := []string{
			e.GetPair().GetRepository(), p.ID(e.GetPair().GetImageId()), rules, p.requirement(e.GetRequirement()),
			strings.Join(e.GetSigners(), "; "),
			p.age(e.GetVerified()), expires,
		}
		if attested {
			var texts []string
			for _, a := range e.GetAttestations() {
				texts = append(texts, a.GetPredicateType()+" "+p.ID(a.GetDigest()))
			}
			row = append(row, strings.Join(texts, "; "))
		}
		if drifted {
			row = append(row, e.GetDrift().GetReason())
		}
		return row
	})
}

func (p *Page) requirement(hash string) string {
	version, digits, ok := strings.Cut(hash, ":")
	if !ok {
		return p.ID(hash)
	}
	return version + ":" + p.ID(digits)
}

func (p *Page) pairs(pairs []*adminv1.Pair) {
	tableOf(p, []string{"REPOSITORY", "IMAGE ID"}, pairs, func(pair *adminv1.Pair) []string {
		return []string{pair.GetRepository(), p.ID(pair.GetImageId())}
	})
}

type repository struct {
	repository string
	record     *adminv1.Record
	mark       *adminv1.Mark
	unreadable bool
}

func repositories(i *adminv1.Image) []*repository {
	by := map[string]*repository{}
	of := func(name string) *repository {
		if by[name] == nil {
			by[name] = &repository{repository: name}
		}
		return by[name]
	}
	for _, r := range i.GetRecords() {
		of(r.GetPair().GetRepository()).record = r
	}
	for _, m := range i.GetMarks() {
		of(m.GetPair().GetRepository()).mark = m
	}
	for _, name := range i.GetUntracked() {
		of(name)
	}
	for _, name := range i.GetUnreadable() {
		of(name).unreadable = true
	}
	return slices.SortedFunc(maps.Values(by), func(a, b *repository) int {
		return cmp.Compare(a.repository, b.repository)
	})
}

func (k *repository) access() string {
	var all []string
	if k.mark != nil {
		all = append(all, "preloaded")
	}
	switch n := len(k.record.GetProofs()); {
	case k.unreadable:
		return "unreadable"
	case k.record.GetOpen():
		all = append(all, "open")
	case len(k.record.GetOpenTo()) > 0:
		all = append(all, "open to "+Count(len(k.record.GetOpenTo()), "namespace", "namespaces"))
	case n > 0:
		all = append(all, Count(n, "credential", "credentials"))
	case k.record != nil && k.mark == nil:
		all = append(all, "no proofs")
	case k.mark == nil:
		all = append(all, "untracked")
	}
	return strings.Join(all, ", ")
}

func presence(p adminv1.Presence) string {
	return cmp.Or(map[adminv1.Presence]string{
		adminv1.Presence_PRESENCE_PRESENT: "yes", adminv1.Presence_PRESENCE_ABSENT: "no",
	}[p], "unknown")
}

func secretNames(secrets []*adminv1.SecretRef) string {
	var all []string
	for _, s := range secrets {
		all = append(all, secretName(s))
	}
	return strings.Join(all, ", ")
}

func origin(o string) string {
	return cmp.Or(map[string]string{
		"first start": "the very first start", "untracked": "a scan, when a pod asked for the image",
		"operator": "an operator",
	}[o], o)
}

// decisionWidths are the usual column widths: a table without an end cannot wait for its widest cell. The last column
// has no limit.
func (p *Page) decisionWidths() []int {
	widths := []int{8, 15, 8, 20, 36, 12, 0}
	if p.AbsoluteTimes {
		widths[0] = len("2006-01-02T15:04:05Z")
	}
	if p.WholeIDs {
		widths[5] = 64
	}
	return widths
}

// DecisionHead prints the head of the table of decisions.
func (p *Page) DecisionHead() {
	p.Row(Bold, []string{"TIME", "CALL", "VERDICT", "REASON", "POD", "CREDENTIAL", "IMAGE"}, p.decisionWidths())
}

// Decision prints a decision in one line.
func (p *Page) Decision(d *adminv1.WatchDecisionsResponse) {
	at := d.GetTime().AsTime()
	when := at.In(p.Now.Location()).Format(time.TimeOnly)
	if p.AbsoluteTimes {
		when = p.date(d.GetTime())
	}
	why := d.GetReason()
	if why == "" && d.GetOutcome() != "" {
		why = "pull " + d.GetOutcome()
	}
	if d.GetShadow() {
		why += " (shadow)"
	}
	colour := Plain
	if d.GetVerdict() == adminv1.Verdict_VERDICT_REVERIFY && !d.GetShadow() {
		colour = Heed
	}
	p.Row(colour, []string{
		when, d.GetCall(), verdict(d.GetVerdict()), why, podName(d.GetPod()), p.ID(d.GetCredentialId()), d.GetImage(),
	}, p.decisionWidths())
}

func verdict(v adminv1.Verdict) string {
	return map[adminv1.Verdict]string{
		adminv1.Verdict_VERDICT_ALLOW: "Allow", adminv1.Verdict_VERDICT_REVERIFY: "Reverify",
	}[v]
}
