package registry

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// authorize returns the header that a challenge asks for.
func (s *session) authorize(ctx context.Context, challenged *http.Response) (string, error) {
	var credential admission.Login
	if s.host.trusted {
		credential = s.repository.credential
	}
	registry, err := name.NewRegistry(s.host.address)
	if err != nil {
		return "", malformed("%q is not the address of a registry", s.host.address)
	}
	challenge, err := parseChallenge(ctx, registry, challenged)
	if err != nil {
		return "", malformed("unusable challenge")
	}
	scheme := strings.ToLower(challenge.Scheme)
	switch {
	case scheme != "basic" && scheme != "bearer":
		return "", fmt.Errorf("%w: neither a Basic nor a Bearer challenge", ErrDenied)
	case credential.RegistryToken != "":
		return "Bearer " + credential.RegistryToken, nil
	case scheme == "bearer":
		return s.token(ctx, registry, credential, challenge)
	case credential.Username == "" || credential.Password == "":
		return "", fmt.Errorf("%w: no user name and password for it", ErrDenied)
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(credential.Username+":"+credential.Password)), nil
}

// parseChallenge reads the challenge of an answer. go-containerregistry parses the answer to a request of its own; it
// gets the one that was received already.
func parseChallenge(ctx context.Context, registry name.Registry, resp *http.Response) (*transport.Challenge, error) {
	return transport.Ping(ctx, registry, roundTripper(func(*http.Request) (*http.Response, error) {
		header := http.Header{"Www-Authenticate": resp.Header.Values("Www-Authenticate")}
		return &http.Response{StatusCode: resp.StatusCode, Header: header, Body: http.NoBody, Request: resp.Request}, nil
	}))
}

// authenticator returns a credential for requests of tokens.
//
//nolint:ireturn // the interface of go-containerregistry
func authenticator(c admission.Login) authn.Authenticator {
	if c.Anonymous() {
		return authn.Anonymous
	}
	return authn.FromConfig(authn.AuthConfig{Username: c.Username, Password: c.Password, IdentityToken: c.IdentityToken})
}

// token requests a token. The token server is the one that the challenge names.
func (s *session) token(ctx context.Context, registry name.Registry, credential admission.Login, challenge *transport.Challenge) (string, error) {
	scope := challenge.Parameters["scope"]
	if scope == "" {
		scope = "repository:" + s.repository.path + ":pull"
	}
	token, err := transport.Exchange(ctx, registry, authenticator(credential), roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := s.exchange(req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= 300 && resp.StatusCode < 400 {
			_ = resp.Body.Close() // it was not read
			return nil, malformed("the token server redirects")
		}
		return resp, nil
	}), []string{scope}, challenge)
	if status, ok := errors.AsType[*transport.Error](err); ok {
		kind := ErrDenied // also 400 and 404, which are answers to a credential that is not valid
		if errors.Is(checkStatus(status.StatusCode), ErrUnavailable) {
			kind = ErrUnavailable
		}
		return "", fmt.Errorf("%w: the token server answered with status %d", kind, status.StatusCode)
	}
	if err != nil {
		if ctx.Err() != nil {
			return "", s.ended(ctx)
		}
		if err = knownError(err); errors.Is(err, ErrMalformed) {
			err = malformed("the token server cannot be used, or its answer is invalid")
		}
		return "", fmt.Errorf("%w (token server)", err)
	}
	if token.Token == "" {
		token.Token = token.AccessToken
	}
	return "Bearer " + token.Token, nil
}
