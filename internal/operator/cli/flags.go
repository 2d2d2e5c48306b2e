package cli

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

type source func(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error)

func ofFlags() map[string]source {
	return map[string]source{
		"repository": ofImages(func(i *adminv1.Image) []string {
			return append(each((*adminv1.Pair).GetRepository)(i), i.GetUntracked()...)
		}),
		"image-id":        ofImages(func(i *adminv1.Image) []string { return []string{i.GetImageId()} }),
		"credential":      ofImages(each((*adminv1.Proof).GetCredentialId)),
		"secret":          ofImages(each(secretCoordinates)),
		"service-account": ofImages(each(accountCoordinates)),
		"requirement":     ofEndorsements(func(e *adminv1.Endorsement) []string { return []string{e.GetRequirement()} }),
		"signer":          ofEndorsements((*adminv1.Endorsement).GetSigners),
		"pod":             ofGrants(coordinates[*adminv1.PodRef]),
		"pod-uid":         ofGrants((*adminv1.PodRef).GetUid),
		"namespace": func(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
			pods, err := ofGrants((*adminv1.PodRef).GetNamespace)(ctx, api)
			if err != nil {
				return nil, err
			}
			secrets, err := ofImages(each((*adminv1.SecretRef).GetNamespace))(ctx, api)
			return append(pods, secrets...), err
		},
	}
}

func coordinates[M interface {
	GetNamespace() string
	GetName() string
}](m M) string {
	if m.GetName() == "" {
		return ""
	}
	return m.GetNamespace() + "/" + m.GetName()
}

func secretCoordinates(s *adminv1.SecretRef) string {
	if accountCoordinates(s) != "" {
		return ""
	}
	return coordinates(s)
}

func accountCoordinates(s *adminv1.SecretRef) string {
	name, ok := strings.CutPrefix(s.GetName(), ServiceAccountPrefix)
	if !ok {
		return ""
	}
	return s.GetNamespace() + "/" + name
}

func each[M proto.Message](collect func(M) string) func(*adminv1.Image) []string {
	return func(i *adminv1.Image) (all []string) {
		// The function never fails.
		_ = protorange.Range(i.ProtoReflect(), func(at protopath.Values) error {
			if m, ok := at.Index(-1).Value.Interface().(protoreflect.Message); ok {
				if m, ok := m.Interface().(M); ok {
					all = append(all, collect(m))
				}
			}
			return nil
		})
		return all
	}
}

func ofImages(collect func(*adminv1.Image) []string) source {
	return collected(&adminv1.ListImagesRequest{}, adminv1.PullRecordsClient.ListImages,
		(*adminv1.ListImagesResponse).GetImages, collect)
}

func ofEndorsements(collect func(*adminv1.Endorsement) []string) source {
	return collected(&adminv1.ListEndorsementsRequest{}, adminv1.PullRecordsClient.ListEndorsements,
		(*adminv1.ListEndorsementsResponse).GetEndorsements, collect)
}

func ofGrants(collect func(*adminv1.PodRef) string) source {
	return collected(&adminv1.ListGrantsRequest{}, adminv1.PullRecordsClient.ListGrants,
		(*adminv1.ListGrantsResponse).GetGrants, func(g *adminv1.Grant) []string { return []string{collect(g.GetPod())} })
}

func collected[Q proto.Message, A ListPage, E any](request Q,
	ask func(adminv1.PullRecordsClient, context.Context, Q, ...grpc.CallOption) (A, error), entries func(A) []E,
	collect func(E) []string,
) source {
	return func(ctx context.Context, api adminv1.PullRecordsClient) (all []string, err error) {
		found, _, err := List(ctx, api, 0, request, ask)
		for _, e := range entries(found) {
			all = append(all, collect(e)...)
		}
		return all, err
	}
}

// CompleteFlags makes the shell complete the values of a command's flags with data from the daemon.
func (c *Console) CompleteFlags(cmd *cobra.Command) {
	for flag, from := range ofFlags() {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]string,
				cobra.ShellCompDirective,
			) {
				return c.complete(cmd, begun, from), cobra.ShellCompDirectiveNoFileComp
			})
		}
	}
}

// CompleteImages completes the only argument, which is an image.
func (c *Console) CompleteImages(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.complete(cmd, begun, ofImages((*adminv1.Image).GetNames)), cobra.ShellCompDirectiveNoFileComp
}

const patience = time.Second

// harmless matches text that a shell takes as one word without special meaning, however its completion scripts quote.
var harmless = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$`)

func (c *Console) complete(cmd *cobra.Command, begun string, from source) []string {
	quick := *c
	quick.timeout = patience
	ctx, cancel := context.WithTimeout(cmd.Context(), patience)
	defer cancel()
	var all []string
	err := quick.Ask(ctx, func(ctx context.Context, api adminv1.PullRecordsClient) (err error) {
		all, err = from(ctx, api)
		return err
	})
	if err != nil {
		return nil
	}
	all = slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, begun) || !harmless.MatchString(s) })
	slices.Sort(all)
	return slices.Compact(all)
}

var (
	wholeImageID      = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	wholeCredentialID = regexp.MustCompile(`^[0-9a-f]{64}$`)
	wholeRequirement  = regexp.MustCompile(`^v[0-9]+:[0-9a-f]{64}$`)
	beginningOfID     = regexp.MustCompile(`^[0-9a-f]{7,64}$`)
)

// IsID reports whether an argument is an image ID, or a beginning of one that is long enough, and not a name.
func IsID(image string) bool { return beginningOfID.MatchString(strings.TrimPrefix(image, "sha256:")) }

func expandIDs(ctx context.Context, api adminv1.PullRecordsClient, request proto.Message) error {
	m := request.ProtoReflect()
	for _, of := range []struct {
		field              protoreflect.Name
		flag, none, advice string
		whole              *regexp.Regexp
	}{
		{field: "image_id", flag: "image-id", whole: wholeImageID},
		{
			"credential_id", "credential", "no credential that proved access has an ID with this prefix",
			"pullgatectl images get IMAGE has those of an image", wholeCredentialID,
		},
		{
			"requirement", "requirement", "no endorsement is for a requirement with this prefix",
			"pullgatectl endorsement list shows the requirements", wholeRequirement,
		},
	} {
		field := m.Descriptor().Fields().ByName(of.field)
		if field == nil || !m.Has(field) || of.whole.MatchString(m.Get(field).String()) {
			continue
		}
		id := m.Get(field).String()
		var err error
		switch {
		case of.flag != "requirement" && !IsID(id):
			return Misused("give 7 digits or more; pullgatectl images list and images get show 12",
				"--%s %q: not an ID, and not at least the first 7 digits of one", of.flag, id)
		case of.flag == "image-id":
			var answer *adminv1.GetImageResponse
			if answer, err = api.GetImage(ctx, &adminv1.GetImageRequest{Image: id}); err != nil {
				return fmt.Errorf("--image-id %s: %w", id, err)
			}
			id = answer.GetImage().GetImageId()
		default:
			id, err = expand(ctx, api, of.flag, id, of.advice, of.none)
		}
		if err != nil {
			return err
		}
		m.Set(field, protoreflect.ValueOfString(id))
	}
	return nil
}

func expand(ctx context.Context, api adminv1.PullRecordsClient, flag, prefix, advice, none string) (string, error) {
	all, err := ofFlags()[flag](ctx, api)
	if err != nil {
		return "", fmt.Errorf("--%s %w", flag, err)
	}
	slices.Sort(all)
	fitting := slices.DeleteFunc(slices.Compact(all), func(whole string) bool { return !strings.HasPrefix(whole, prefix) })
	switch len(fitting) {
	case 0:
		return "", program.Hintf(advice, "--%s %s: %s", flag, prefix, none)
	case 1:
		return fitting[0], nil
	}
	return "", program.Hintf("give more digits", "--%s %s: ambiguous ID prefix: %s", flag, prefix,
		strings.Join(fitting, ", "))
}
