package adminapi

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// secretsLimit bounds how long one page of ListPods waits for Secrets that were never read.
const secretsLimit = 5 * time.Second

// A podImage is a row of ListPods. An empty image means that the images of the pod are not known.
type podImage struct {
	tracker.Pod
	podsource.Use
}

func (p podImage) key() string {
	return strings.Join([]string{p.Namespace, p.Name, p.UID, p.Container, p.Image.String()}, separator)
}

// ListPods lists the images of pods that have not ended.
func (s *Server) ListPods(ctx context.Context, req *adminv1.ListPodsRequest) (*adminv1.ListPodsResponse, error) {
	policies, set := s.c.Policies(), s.c.Access()
	reported := map[string]bool{} // policies that would only report
	for _, policy := range policies.GetPolicies() {
		reported[policy.GetName()] = policy.GetAudit()
	}
	waiting, cancel := context.WithTimeout(ctx, secretsLimit)
	defer cancel()
	runtime := resolver{Server: s, known: map[string]tracker.Image{}}
	page, next, err := list(ctx, req, inMemory(s.podImages()), podImage.key,
		func(_ string, row podImage) (*adminv1.PodImage, bool) {
			c, state := s.stateOf(ctx, waiting, &runtime, row, set, func(f admission.Finding) bool {
				return !policies.GetEnforcing() && !reported[f.Policy]
			})
			image := &adminv1.PodImage{
				Namespace: row.Namespace, Pod: row.Name, Uid: row.UID, Container: row.Container,
				Image: text(row.Image.String()), State: text(state),
			}
			if state == stateNeedsProof {
				image.PullSecrets, image.PullSecretsKnown = c.pullSecrets(), c.CredentialsKnown
			}
			return image, !req.GetDenied() || state == stateNeedsProof || strings.HasPrefix(state, "denied by ")
		})
	rules := s.c.Tracker.Rules()
	return &adminv1.ListPodsResponse{
		Images: page, NextPageToken: next, PoliciesEnforcing: policies.GetEnforcing(),
		Enforcing: !s.c.Settings.Shadow && rules.Policy.Mode() != policy.ModeNeverVerify,
	}, err
}

func (s *Server) podImages() (rows []podImage) {
	sourced := map[string]bool{}
	if s.c.PodSource != nil {
		for _, p := range s.c.PodSource.Pods() {
			sourced[p.UID] = true
			for _, i := range p.Uses {
				if name, err := imageref.KubeletName(i.Image.String()); err == nil { // as explain takes it
					i.Image = imageref.New(name)
				}
				if !p.Ended {
					rows = append(rows, podImage{p.Pod, i})
				}
			}
		}
	}
	for _, p := range s.c.Pods.All() {
		if !sourced[p.UID] {
			rows = append(rows, podImage{Pod: p})
		}
	}
	return rows
}

// stateOf judges a row as Explain does, by the files of set. It waits for Secrets only as long as waiting lasts.
func (s *Server) stateOf(
	ctx, waiting context.Context, runtime *resolver, row podImage, set *imageaccess.Set,
	reported func(admission.Finding) bool,
) (c explanation, state string) {
	if row.Image.Empty() { // only a pod that may use every image has a state without one
		c.Decision = s.c.Tracker.CheckID(identity(row.Pod), imageref.New(anyID))
		image := admission.Image{Requested: row.Image}
		c.Policies = s.c.Gate.ExplainPolicies(ctx, row.Pod, []string{row.Container}, image, "", false)
		if state = c.State(reported); state == stateNeedsProof {
			state = "unknown"
		}
		return c, state
	}
	present, refused, err := runtime.image(ctx, row.Pod, row.Image)
	if err != nil {
		return c, "unknown"
	}
	c = s.judge(waiting, row.Pod, row.Image, present, refused, set)
	if c.Reason == policy.Shared && row.PullPolicy == tracker.PullAlways {
		return c, stateNeedsProof // its pull asks the registry with a credential of its own
	}
	c.Policies = s.c.Gate.ExplainPolicies(ctx, row.Pod, []string{row.Container}, imageOf(present, row.Image),
		row.Image.String(), false)
	return c, c.State(reported)
}

const anyID = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

// A resolver asks the runtime once for each name, and no more after the runtime could not be reached.
type resolver struct {
	*Server
	known map[string]tracker.Image
	down  error
}

// image returns what the runtime has under a name. An error can depend on the pod, and is not kept.
func (r *resolver) image(
	ctx context.Context, who tracker.Pod, name imageref.Ref,
) (present tracker.Image, refused *policy.Decision, err error) {
	present, ok := r.known[name.String()]
	if ok || r.down != nil {
		return present, nil, r.down
	}
	present, refused, err = r.resolve(ctx, who, name)
	switch {
	case err == nil && refused == nil:
		r.known[name.String()] = present
	case errors.Is(err, errUnasked):
		r.down = err
	}
	return present, refused, err
}
