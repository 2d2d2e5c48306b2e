package cli

import (
	"context"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// mostOfPage is the maximum number of entries in one request.
const mostOfPage = 100

// pages requests pages until there are limit entries, or all if limit is 0. ask requests one page by the token of the previous
// one and a size, and returns the number of entries and the token of the next page.
func pages(limit int, ask func(token string, size int32) (int, string, error)) error {
	for token, all := "", 0; ; {
		size := mostOfPage
		if limit > 0 {
			size = min(size, limit-all)
		}
		n, next, err := ask(token, int32(size))
		if err != nil {
			return err
		}
		all += n
		if next == "" || limit > 0 && all >= limit {
			return nil
		}
		if next == token {
			return ErrSamePage
		}
		token = next
	}
}

// Images lists up to limit images, all if limit is 0. Its NextPageToken is not empty if there are more. The same applies to the
// other lists.
func Images(ctx context.Context, api adminv1.PullRecordsClient, limit int, filter *adminv1.ImageFilter) (*adminv1.ListImagesResponse, error) {
	all := &adminv1.ListImagesResponse{}
	err := pages(limit, func(token string, size int32) (int, string, error) {
		page, err := api.ListImages(ctx, &adminv1.ListImagesRequest{Filter: filter, PageSize: size, PageToken: token})
		all.Images = append(all.Images, page.GetImages()...)
		all.NextPageToken = page.GetNextPageToken()
		return len(page.GetImages()), page.GetNextPageToken(), err
	})
	return all, err
}

// Intents lists up to limit intents of a repository, or of all repositories if it is "".
func Intents(ctx context.Context, api adminv1.PullRecordsClient, limit int, repository string) (*adminv1.ListIntentsResponse, error) {
	all := &adminv1.ListIntentsResponse{}
	err := pages(limit, func(token string, size int32) (int, string, error) {
		page, err := api.ListIntents(ctx, &adminv1.ListIntentsRequest{Repository: repository, PageSize: size, PageToken: token})
		all.Intents = append(all.Intents, page.GetIntents()...)
		all.NextPageToken = page.GetNextPageToken()
		return len(page.GetIntents()), page.GetNextPageToken(), err
	})
	return all, err
}

// Grants lists up to limit grants, only those of a pod and of a repository if these are set.
func Grants(ctx context.Context, api adminv1.PullRecordsClient, limit int, pod *adminv1.PodRef, repository string) (*adminv1.ListGrantsResponse, error) {
	all := &adminv1.ListGrantsResponse{}
	err := pages(limit, func(token string, size int32) (int, string, error) {
		page, err := api.ListGrants(ctx, &adminv1.ListGrantsRequest{Pod: pod, Repository: repository, PageSize: size, PageToken: token})
		all.Grants = append(all.Grants, page.GetGrants()...)
		all.NextPageToken = page.GetNextPageToken()
		return len(page.GetGrants()), page.GetNextPageToken(), err
	})
	return all, err
}

// Preloaded lists up to limit marks, only those of a repository and of an image if these are set.
func Preloaded(ctx context.Context, api adminv1.PullRecordsClient, limit int, repository, image string) (*adminv1.ListPreloadedResponse, error) {
	all := &adminv1.ListPreloadedResponse{}
	err := pages(limit, func(token string, size int32) (int, string, error) {
		page, err := api.ListPreloaded(ctx, &adminv1.ListPreloadedRequest{Repository: repository, ImageId: image, PageSize: size, PageToken: token})
		all.Marks = append(all.Marks, page.GetMarks()...)
		all.NextPageToken = page.GetNextPageToken()
		return len(page.GetMarks()), page.GetNextPageToken(), err
	})
	return all, err
}

// Endorsements lists up to limit endorsements that match the request, which gets the page tokens.
func Endorsements(ctx context.Context, api adminv1.PullRecordsClient, limit int, request *adminv1.ListEndorsementsRequest) (*adminv1.ListEndorsementsResponse, error) {
	all := &adminv1.ListEndorsementsResponse{}
	err := pages(limit, func(token string, size int32) (int, string, error) {
		request.PageSize, request.PageToken = size, token
		page, err := api.ListEndorsements(ctx, request)
		all.Endorsements = append(all.Endorsements, page.GetEndorsements()...)
		all.NextPageToken = page.GetNextPageToken()
		return len(page.GetEndorsements()), page.GetNextPageToken(), err
	})
	return all, err
}

// Policies lists up to limit policies. What the answer says of all policies is that of its last page.
func Policies(ctx context.Context, api adminv1.PullRecordsClient, limit int) (*adminv1.ListPoliciesResponse, error) {
	all := &adminv1.ListPoliciesResponse{}
	err := pages(limit, func(token string, size int32) (int, string, error) {
		page, err := api.ListPolicies(ctx, &adminv1.ListPoliciesRequest{PageSize: size, PageToken: token})
		if err != nil {
			return 0, "", err
		}
		found := page.GetPolicies()
		page.Policies = append(all.GetPolicies(), found...)
		all = page
		return len(found), page.GetNextPageToken(), nil
	})
	return all, err
}
