package cli

import (
	"context"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// mostOfPage is the maximum number of entries in one request.
const mostOfPage = 100

// pages requests pages until there are limit entries, or all if limit is 0, and returns the last page with the entries of all of
// them. ask requests one page by the token of the previous one and a size.
func pages[R interface{ GetNextPageToken() string }, E any](limit int, entries func(R) *[]E, ask func(token string, size int32) (R, error)) (R, error) {
	var all []E
	for token := ""; ; {
		size := mostOfPage
		if limit > 0 {
			size = min(size, limit-len(all))
		}
		page, err := ask(token, int32(size))
		if err != nil {
			return page, err
		}
		all = append(all, *entries(page)...)
		*entries(page) = all
		next := page.GetNextPageToken()
		if next == "" || limit > 0 && len(all) >= limit {
			return page, nil
		}
		if next == token {
			return page, ErrSamePage
		}
		token = next
	}
}

// Images lists up to limit images, all if limit is 0. Its NextPageToken is not empty if there are more. The same applies to the
// other lists.
func Images(ctx context.Context, api adminv1.PullRecordsClient, limit int, filter *adminv1.ImageFilter) (*adminv1.ListImagesResponse, error) {
	entries := func(r *adminv1.ListImagesResponse) *[]*adminv1.Image { return &r.Images }
	return pages(limit, entries, func(token string, size int32) (*adminv1.ListImagesResponse, error) {
		return api.ListImages(ctx, &adminv1.ListImagesRequest{Filter: filter, PageSize: size, PageToken: token})
	})
}

// Intents lists up to limit intents of a repository, or of all repositories if it is "".
func Intents(ctx context.Context, api adminv1.PullRecordsClient, limit int, repository string) (*adminv1.ListIntentsResponse, error) {
	entries := func(r *adminv1.ListIntentsResponse) *[]*adminv1.Intent { return &r.Intents }
	return pages(limit, entries, func(token string, size int32) (*adminv1.ListIntentsResponse, error) {
		return api.ListIntents(ctx, &adminv1.ListIntentsRequest{Repository: repository, PageSize: size, PageToken: token})
	})
}

// Grants lists up to limit grants, only those of a pod and of a repository if these are set.
func Grants(ctx context.Context, api adminv1.PullRecordsClient, limit int, pod *adminv1.PodRef, repository string) (*adminv1.ListGrantsResponse, error) {
	entries := func(r *adminv1.ListGrantsResponse) *[]*adminv1.Grant { return &r.Grants }
	return pages(limit, entries, func(token string, size int32) (*adminv1.ListGrantsResponse, error) {
		return api.ListGrants(ctx, &adminv1.ListGrantsRequest{Pod: pod, Repository: repository, PageSize: size, PageToken: token})
	})
}

// Preloaded lists up to limit marks, only those of a repository and of an image if these are set.
func Preloaded(ctx context.Context, api adminv1.PullRecordsClient, limit int, repository, image string) (*adminv1.ListPreloadedResponse, error) {
	entries := func(r *adminv1.ListPreloadedResponse) *[]*adminv1.Mark { return &r.Marks }
	return pages(limit, entries, func(token string, size int32) (*adminv1.ListPreloadedResponse, error) {
		return api.ListPreloaded(ctx, &adminv1.ListPreloadedRequest{Repository: repository, ImageId: image, PageSize: size, PageToken: token})
	})
}

// Endorsements lists up to limit endorsements that match the request, which gets the page tokens.
func Endorsements(ctx context.Context, api adminv1.PullRecordsClient, limit int, request *adminv1.ListEndorsementsRequest) (*adminv1.ListEndorsementsResponse, error) {
	entries := func(r *adminv1.ListEndorsementsResponse) *[]*adminv1.Endorsement { return &r.Endorsements }
	return pages(limit, entries, func(token string, size int32) (*adminv1.ListEndorsementsResponse, error) {
		request.PageSize, request.PageToken = size, token
		return api.ListEndorsements(ctx, request)
	})
}

// Policies lists up to limit policies. What the answer says of all policies is that of its last page.
func Policies(ctx context.Context, api adminv1.PullRecordsClient, limit int) (*adminv1.ListPoliciesResponse, error) {
	entries := func(r *adminv1.ListPoliciesResponse) *[]*adminv1.Policy { return &r.Policies }
	return pages(limit, entries, func(token string, size int32) (*adminv1.ListPoliciesResponse, error) {
		return api.ListPolicies(ctx, &adminv1.ListPoliciesRequest{PageSize: size, PageToken: token})
	})
}
