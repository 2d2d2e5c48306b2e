package adminapi

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// maxChanges bounds the rights of each kind and the pods in an answer of TestImageAccess.
const maxChanges = 1000

// rightsOf returns by which rights pods may use an image, for each of its repositories.
func (s *Server) rightsOf(ctx context.Context, i image, set *imageaccess.Set) (rights []*adminv1.ImageRight) {
	rules, now := s.c.Tracker.Rules(), time.Now()
	for _, repository := range repositoriesOf(i) {
		add := func(right string, r *adminv1.ImageRight) {
			r.Repository, r.Right = text(repository), right
			rights = append(rights, r)
		}
		for _, r := range i.facts.Records {
			if r.Pair.Repository != repository {
				continue
			}
			for _, p := range r.Proofs {
				if status := rules.Status(&p, now); status == tracker.Valid || status == tracker.InGrace {
					add(policy.ByProof, &adminv1.ImageRight{
						By: string(p.Credential), Secrets: all(p.Secrets, secretTo), InGrace: status == tracker.InGrace,
					})
				}
			}
			by := "a pull without a credential, or with the node's"
			switch {
			case r.ForEveryPod():
				by = "a pull without a credential"
			case !r.ByNode.IsZero():
				by = "a credential of the node"
			}
			if to, open := rules.OpenTo(r); open && (to == nil || len(to) > 0) {
				add(policy.ByOpen, &adminv1.ImageRight{By: by, Namespaces: to})
			}
		}
		if right := s.rightOfAll(ctx, i.Image, repository).Right(); right == policy.ByPolicy || right == policy.ByPreload {
			add(right, &adminv1.ImageRight{By: string(rules.Policy.Mode())})
		}
		if (len(rules.ExemptNamespaces) > 0 || rules.ExemptStaticPods) && !unparsedForm.MatchString(repository) {
			add(policy.ByPolicy, &adminv1.ImageRight{
				By: "exempt", Namespaces: slices.Clone(rules.ExemptNamespaces), StaticPods: rules.ExemptStaticPods,
			})
		}
		rights = append(rights, rightsByFiles(repository, isProved(i, repository, &rules, now), set)...)
	}
	return rights
}

// rightOfAll returns why a pod that nothing is known of may use an image, without files.
func (s *Server) rightOfAll(ctx context.Context, i tracker.Image, repository string) policy.Reason {
	for _, n := range i.Names {
		if n.Parsed() && n.Repository() == repository {
			return s.c.Tracker.ExplainBy(ctx, tracker.Request{Name: n, Image: i}, nil).Reason
		}
	}
	return policy.Absent
}

// isProved reports whether a Share of an image has an effect.
func isProved(i image, repository string, rules *tracker.Rules, now time.Time) bool {
	return slices.ContainsFunc(i.facts.Records, func(r records.Record) bool {
		return r.Pair.Repository == repository && (r.Open || slices.ContainsFunc(r.Proofs, func(p records.Proof) bool {
			status := rules.Status(&p, now)
			return status == tracker.Valid || status == tracker.InGrace
		}))
	})
}

func rightsByFiles(repository string, proved bool, set *imageaccess.Set) (rights []*adminv1.ImageRight) {
	for _, f := range set.FilesOf(repository) {
		r := &adminv1.ImageRight{
			Repository: text(repository), Right: policy.ByImageFile, By: f.Name, Grant: string(f.Grant), Audit: f.Audit,
			Waits: f.Grant == imageaccess.Share && !proved,
		}
		r.Namespaces, r.ServiceAccounts = f.Who()
		rights = append(rights, r)
	}
	return rights
}

func repositoriesOf(i image) []string {
	all := i.Repositories()
	for _, r := range i.facts.Records {
		all = append(all, r.Pair.Repository)
	}
	for _, m := range i.facts.Marks {
		all = append(all, m.Pair.Repository)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestImageAccess reports what other files of kind ImageAccess would change.
func (s *Server) TestImageAccess(
	ctx context.Context, req *adminv1.TestImageAccessRequest,
) (*adminv1.TestImageAccessResponse, error) {
	var files []strictyaml.File
	for _, f := range req.GetFiles() {
		files = append(files, strictyaml.File{Name: text(f.GetName()), Data: f.GetData()})
	}
	next, err := imageaccess.Load(files)
	if err != nil {
		return nil, invalid("files: %v", err)
	}
	images, asked, err := s.images(ctx)
	switch {
	case err != nil:
		return nil, err
	case !asked:
		return nil, errUnasked
	}
	answer := &adminv1.TestImageAccessResponse{}
	rules, set, now := s.c.Tracker.Rules(), s.c.Access(), time.Now()
	proved := map[string]bool{} // by repository
	for _, i := range images {
		if !i.present {
			continue
		}
		for _, repository := range repositoriesOf(i) {
			proved[repository] = proved[repository] || isProved(i, repository, &rules, now)
		}
	}
	for _, repository := range slices.Sorted(maps.Keys(proved)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		before := rightsByFiles(repository, proved[repository], set)
		after := rightsByFiles(repository, proved[repository], next)
		for of, change := range map[*[]*adminv1.ImageRight][]*adminv1.ImageRight{
			&answer.Gained: without(after, before), &answer.Lost: without(before, after),
		} {
			room := min(maxChanges-len(*of), len(change))
			*of = append(*of, change[:room]...)
			answer.More += int32(len(change) - room) //nolint:gosec // bounded by the files
		}
	}
	return answer, s.changes(ctx, set, next, answer)
}

// without returns the rights that are not in others.
func without(rights, others []*adminv1.ImageRight) []*adminv1.ImageRight {
	return slices.DeleteFunc(slices.Clone(rights), func(r *adminv1.ImageRight) bool {
		return slices.ContainsFunc(others, func(o *adminv1.ImageRight) bool { return proto.Equal(o, r) })
	})
}

// changes adds the images of pods whose state would change.
func (s *Server) changes(
	ctx context.Context, set, next *imageaccess.Set, to *adminv1.TestImageAccessResponse,
) error {
	waiting, cancel := context.WithTimeout(ctx, secretsLimit)
	defer cancel()
	runtime := resolver{Server: s, known: map[string]tracker.Image{}}
	rows := s.podImages()
	slices.SortFunc(rows, func(a, b podImage) int { return strings.Compare(a.key(), b.key()) })
	for _, row := range rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !row.concerns(set) && !row.concerns(next) {
			continue
		}
		enforced := func(admission.Finding) bool { return true } // policies are the same before and after
		_, now := s.stateOf(ctx, waiting, &runtime, row, set, enforced)
		_, state := s.stateOf(ctx, waiting, &runtime, row, next, enforced)
		switch {
		case now == state:
		case len(to.GetPods()) >= maxChanges:
			to.More++
		default:
			to.Pods = append(to.Pods, &adminv1.PodImageChange{
				State: text(state), Now: &adminv1.PodImage{
					Namespace: row.Namespace, Pod: row.Name, Uid: row.UID, Container: row.Container,
					Image: text(row.Image.String()), State: text(now),
				},
			})
		}
	}
	if errors.Is(runtime.down, errUnasked) {
		return runtime.down
	}
	return nil
}

// concerns reports whether a file may say something about a row. An ID may be that of any image.
func (p podImage) concerns(set *imageaccess.Set) bool {
	if p.Image.Empty() || len(set.Files()) == 0 {
		return false
	}
	return !p.Image.Parsed() || p.Image.MayBeImageID() || len(set.FilesOf(p.Image.Repository())) > 0
}
