package cli

import (
	"time"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Revocation prints what a revocation revokes, or would revoke.
func (v View) Revocation(p *Page, r *adminv1.RevokeResponse) {
	var rows [][]string
	for _, proof := range r.GetProofs() {
		rows = append(rows, []string{
			proof.GetPair().GetRepository(), v.ID(proof.GetPair().GetImageId()), v.ID(proof.GetProof().GetCredentialId()),
			secretNames(proof.GetProof().GetSecrets()), v.age(proof.GetProof().GetLastProved()), v.age(proof.GetProof().GetLastUsed()),
		})
	}
	for _, pair := range r.GetClosed() {
		rows = append(rows, []string{pair.GetRepository(), v.ID(pair.GetImageId()), "every pod", "", "", ""})
	}
	if len(rows) > 0 {
		p.Table([]string{"REPOSITORY", "IMAGE ID", "CREDENTIAL", "SECRETS", "LAST PROVED", "LAST USED"}, rows)
	}
	v.ending(p, r.GetGrants())
	if len(r.GetMarked()) > 0 {
		p.Gap()
		p.PaintProse(Heed, "", "%s preloaded and not touched by this: under a policy that exempts preloaded images every pod may still use marked images. `pullgatectl preloaded forget` ends that.",
			Count(len(r.GetMarked()), "pair is", "pairs are"))
		v.Marks(p, r.GetMarked())
	}
}

// ending prints which grants end with a change.
func (v View) ending(p *Page, grants []*adminv1.Grant) {
	if len(grants) == 0 {
		return
	}
	p.Gap()
	p.Prose("", "Grants that end; running containers continue, and new containers of these pods are judged again:")
	v.Grants(p, grants)
}

// Revoked prints what was revoked, in one sentence.
func (View) Revoked(p *Page, r *adminv1.RevokeResponse) {
	p.Prose("", "Revoked %s, closed %s, ended %s.", Count(len(r.GetProofs()), "proof", "proofs"),
		Count(len(r.GetClosed()), "open image", "open images"), Count(len(r.GetGrants()), "grant", "grants"))
}

// Acceptance prints which pairs are marked preloaded, or would be.
func (v View) Acceptance(p *Page, r *adminv1.AcceptPreloadedResponse) {
	if len(r.GetProved()) == 0 {
		v.pairs(p, r.GetAccepted())
		return
	}
	proved := map[string]string{}
	for _, rec := range r.GetProved() {
		by := "unreadable record"
		if n := len(rec.GetProofs()); n > 0 {
			by = Count(n, "credential", "credentials")
		}
		proved[rec.GetPair().GetImageId()+" "+rec.GetPair().GetRepository()] = by
	}
	tableOf(p, []string{"REPOSITORY", "IMAGE ID", "PROVED BY"}, r.GetAccepted(), func(pair *adminv1.Pair) []string {
		return []string{pair.GetRepository(), v.ID(pair.GetImageId()), proved[pair.GetImageId()+" "+pair.GetRepository()]}
	})
	p.Gap()
	p.PaintProse(Heed, "", "Access to %s was proved with credentials. Accepting them opens them to every pod, and needs --including-proved.",
		Count(len(r.GetProved()), "of these pairs", "of these pairs"))
}

// Accepted prints what was marked, in one sentence.
func (View) Accepted(p *Page, r *adminv1.AcceptPreloadedResponse) {
	p.Prose("", "Marked %s as preloaded.", Count(len(r.GetAccepted()), "pair", "pairs"))
}

// Forgetting prints which marks are removed, or would be.
func (v View) Forgetting(p *Page, r *adminv1.ForgetPreloadedResponse) {
	v.Marks(p, r.GetForgotten())
	v.ending(p, r.GetGrants())
	if len(r.GetStillOpen()) > 0 {
		p.Gap()
		p.PaintProse(Heed, "", "Every pod may still use these names of the same images, because their records are open; `pullgatectl revoke --repository` closes them:")
		v.pairs(p, r.GetStillOpen())
	}
}

// Forgotten prints which marks were removed, in one sentence.
func (View) Forgotten(p *Page, r *adminv1.ForgetPreloadedResponse) {
	p.Prose("", "Forgot %s, ended %s. The images need proof from now on.", Count(len(r.GetForgotten()), "mark", "marks"),
		Count(len(r.GetGrants()), "grant", "grants"))
}

// EndorsementRevocation prints which endorsements are revoked, or would be.
func (v View) EndorsementRevocation(p *Page, r *adminv1.RevokeEndorsementsResponse) {
	v.Endorsements(p, r.GetEndorsements())
}

// EndorsementsRevoked prints what was revoked, in one sentence.
func (View) EndorsementsRevoked(p *Page, r *adminv1.RevokeEndorsementsResponse) {
	p.Prose("", "Revoked %s. Where a policy requires it, the images are pulled and verified again before a new pod can use them.",
		Count(len(r.GetEndorsements()), "endorsement", "endorsements"))
}

// Trusting prints what the end of distrust opens, or would open.
func (v View) Trusting(p *Page, r *adminv1.EndDistrustResponse) {
	p.Prose("", "The store is in distrust since %s: %s.", v.date(r.GetEnded().GetSince()), r.GetEnded().GetReason())
	if len(r.GetAccepted()) == 0 {
		p.Prose("", "No image on the node is untracked: ending distrust marks none preloaded.")
		return
	}
	p.Prose("", "These images become preloaded, for every pod:")
	v.pairs(p, r.GetAccepted())
}

// Trusted prints that distrust has ended, in one sentence.
func (View) Trusted(p *Page, r *adminv1.EndDistrustResponse) {
	p.Prose("", "Distrust has ended; the next scan marks %s preloaded.", Count(len(r.GetAccepted()), "pair", "pairs"))
}

// Verification prints the result of a verification of the store.
func (View) Verification(p *Page, r *adminv1.VerifyStoreResponse) {
	took := r.GetTook().AsDuration().Round(time.Millisecond)
	if len(r.GetProblems()) == 0 {
		p.Paint(Good, "%s read in %s: the store is valid.", Count(r.GetValues(), "value", "values"), took)
		return
	}
	p.Paint(Bad, "%s read in %s, %s unreadable. A start removes unreadable values and distrusts the store.", Count(r.GetValues(), "value", "values"), took, Count(len(r.GetProblems()), "place", "places"))
	tableOf(p, []string{"WHERE", "WHAT"}, r.GetProblems(), func(problem *adminv1.StoreProblem) []string {
		return []string{problem.GetWhere(), problem.GetWhat()}
	})
}
