package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// completionTime is how long somebody who has pressed Tab waits for the daemon.
const completionTime = time.Second

// A source is what the daemon knows that may be meant.
type source func(ctx context.Context, c *console, api adminv1.PullRecordsClient) ([]string, error)

// completeFlags has the shell complete the values of a command's flags by what the daemon knows.
func (c *console) completeFlags(cmd *cobra.Command) {
	for flag, from := range map[string]source{
		"repository": knownRepositories, "image-id": knownImageIDs, "credential": knownCredentials,
		"secret": knownSecrets, "pod": knownPods, "pod-uid": knownPodUIDs, "namespace": knownNamespaces,
	} {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
				return c.complete(cmd, begun, from), cobra.ShellCompDirectiveNoFileComp
			})
		}
	}
}

// completeImages completes the one argument that is an image.
func (c *console) completeImages(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.complete(cmd, begun, knownNames), cobra.ShellCompDirectiveNoFileComp
}

// harmless is what a shell, whose completion scripts quote as they like, takes for one word without a meaning.
var harmless = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$`)

// complete returns what the daemon knows that begins so. Whatever fails is silent: the line that is typed stays whole.
func (c *console) complete(cmd *cobra.Command, begun string, from source) []string {
	quick := *c
	quick.timeout = completionTime
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	var all []string
	err := quick.ask(ctx, func(ctx context.Context, api adminv1.PullRecordsClient) (err error) {
		all, err = from(ctx, &quick, api)
		return err
	})
	if err != nil {
		return nil
	}
	all = slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, begun) || !harmless.MatchString(s) })
	slices.Sort(all)
	return slices.Compact(all)
}

// ofImages collects from every image.
func ofImages(ctx context.Context, c *console, api adminv1.PullRecordsClient, collect func(*adminv1.Image) []string) ([]string, error) {
	images, err := c.listImages(ctx, api, 0, nil)
	var all []string
	for _, i := range images.GetImages() {
		all = append(all, collect(i)...)
	}
	return all, err
}

func knownNames(ctx context.Context, c *console, api adminv1.PullRecordsClient) ([]string, error) {
	return ofImages(ctx, c, api, (*adminv1.Image).GetNames)
}

func knownImageIDs(ctx context.Context, c *console, api adminv1.PullRecordsClient) ([]string, error) {
	return ofImages(ctx, c, api, func(i *adminv1.Image) []string { return []string{i.GetImageId()} })
}

func knownRepositories(ctx context.Context, c *console, api adminv1.PullRecordsClient) ([]string, error) {
	return ofImages(ctx, c, api, func(i *adminv1.Image) []string {
		all := slices.Clone(i.GetUntracked())
		for _, r := range i.GetRecords() {
			all = append(all, r.GetPair().GetRepository())
		}
		for _, m := range i.GetMarks() {
			all = append(all, m.GetPair().GetRepository())
		}
		return all
	})
}

func knownCredentials(ctx context.Context, c *console, api adminv1.PullRecordsClient) ([]string, error) {
	return ofProofs(ctx, c, api, func(p *adminv1.Proof) []string { return []string{p.GetCredentialId()} })
}

func knownSecrets(ctx context.Context, c *console, api adminv1.PullRecordsClient) ([]string, error) {
	return ofProofs(ctx, c, api, func(p *adminv1.Proof) []string {
		var all []string
		for _, s := range p.GetSecrets() {
			all = append(all, s.GetNamespace()+"/"+s.GetName())
		}
		return all
	})
}

// ofProofs collects from every proof.
func ofProofs(ctx context.Context, c *console, api adminv1.PullRecordsClient, collect func(*adminv1.Proof) []string) ([]string, error) {
	return ofImages(ctx, c, api, func(i *adminv1.Image) []string {
		var all []string
		for _, r := range i.GetRecords() {
			for _, p := range r.GetProofs() {
				all = append(all, collect(p)...)
			}
		}
		return all
	})
}

func knownPods(ctx context.Context, c *console, api adminv1.PullRecordsClient) ([]string, error) {
	return ofGrants(ctx, c, api, func(p *adminv1.PodRef) string {
		if p.GetName() == "" {
			return ""
		}
		return p.GetNamespace() + "/" + p.GetName()
	})
}

func knownPodUIDs(ctx context.Context, c *console, api adminv1.PullRecordsClient) ([]string, error) {
	return ofGrants(ctx, c, api, (*adminv1.PodRef).GetUid)
}

// knownNamespaces are those of pods that hold a grant, and of Secrets that proved something.
func knownNamespaces(ctx context.Context, c *console, api adminv1.PullRecordsClient) ([]string, error) {
	pods, err := ofGrants(ctx, c, api, (*adminv1.PodRef).GetNamespace)
	if err != nil {
		return nil, err
	}
	secrets, err := ofProofs(ctx, c, api, func(p *adminv1.Proof) []string {
		var all []string
		for _, s := range p.GetSecrets() {
			all = append(all, s.GetNamespace())
		}
		return all
	})
	return append(pods, secrets...), err
}

// ofGrants collects from the pod of every grant.
func ofGrants(ctx context.Context, c *console, api adminv1.PullRecordsClient, collect func(*adminv1.PodRef) string) ([]string, error) {
	grants, err := c.listGrants(ctx, api, 0, nil, "")
	var all []string
	for _, g := range grants.GetGrants() {
		all = append(all, collect(g.GetPod()))
	}
	return all, err
}
