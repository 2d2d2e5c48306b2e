package gate_test

import (
	"context"
	"fmt"
	"maps"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// held returns the contents of a pod's Secrets that the gate can have.
func (w *modelWorld) held(p *modelPod) (all []held) {
	if !w.podSource || p == nil {
		return nil
	}
	for i, s := range w.secrets[p.namespace] {
		if s != nil {
			all = append(all, held{
				ref: secretRef{UID: s.uid, Namespace: p.namespace, Name: fmt.Sprint("pull-", i)}, password: s.password,
			})
		}
	}
	return all
}

// question asks for a pod that presents what proving returns for its password, "" for none.
func (w *modelWorld) question(p *modelPod, c content, repository, proving string) question {
	q := question{
		uid: p.uid, namespace: p.namespace, static: p.source != "api", pair: pair{c, repository}, password: proving,
	}
	if !q.static {
		q.secrets = w.held(p)
	}
	if g, ok := w.account(p); ok {
		q.secrets = append(q.secrets, held{ref: g.ref(), password: g.proves()})
	}
	return q
}

// on returns the image with this name on the node.
func (w *modelWorld) on(name string) (content, bool) {
	w.runtime.mu.Lock()
	defer w.runtime.mu.Unlock()
	return w.runtime.resolve(name)
}

// judged notes that a pod asks for a name, and returns the contents that the pod may use under that name.
func (w *modelWorld) judged(p *modelPod, name, proving string) uses {
	may := uses{}
	if c, ok := w.on(name); ok && len(w.truth.asked(w.question(p, c, repositoryOf(name), proving))) > 0 {
		may[c] = true
	}
	return may
}

// mayUse returns every content that a pod may use under a repository, "" for any.
func (w *modelWorld) mayUse(p *modelPod, repository string) uses {
	may := uses{}
	for c := content(1); c <= allContents; c++ {
		if w.mayUseOne(p, c, repository) {
			may[c] = true
		}
	}
	return may
}

func (w *modelWorld) mayUseOne(p *modelPod, c content, repository string) bool {
	if repository != "" {
		return len(w.truth.asked(w.question(p, c, repository, ""))) > 0
	}
	may := false
	for _, r := range modelRepositories() {
		may = len(w.truth.asked(w.question(p, c, r, ""))) > 0 || may
	}
	return may
}

// precheck returns the runtime's answer about an image to the kubelet.
func (w *modelWorld) precheck(ctx context.Context, p *modelPod, name string) (id string, err error) {
	var resp runtimeapi.ImageStatusResponse
	err = w.call(ctx, runtimeapi.ImageService_ImageStatus_FullMethodName, &runtimeapi.ImageStatusRequest{
		Image: &runtimeapi.ImageSpec{Image: name, Annotations: p.annotations()},
	}, &resp)
	return resp.GetImage().GetId(), err
}

// doPrecheck sends a pre-check for an image and compares the answer with the truth.
func (w *modelWorld) doPrecheck(p *modelPod, name string, x *interruption) (id string) {
	p.asksFor(name)
	may := w.judged(p, name, "")
	var shown string // of the call, which may end after this function returns
	var err error
	w.interrupted(x, func(ctx context.Context) { shown, err = w.precheck(ctx, p, name) }, func() {
		id = shown
		maps.Copy(may, w.judged(p, name, ""))
		switch {
		case err != nil:
			w.counts["pre-check failed"]++
		case id == "":
			w.counts["pre-check hidden or absent"]++
		default:
			c := contentOf(id)
			w.counts["pre-check shown"]++
			if !may[c] && !w.mayUseOne(p, c, repositoryOf(name)) {
				w.fail("safety: a pre-check of %s by %s shows %v", name, p.uid, c)
			}
		}
	})
	return id
}

func (w *modelWorld) password(p *modelPod, cred credentialKind) string {
	secrets := w.secrets[p.namespace]
	switch cred {
	case secretContent:
		if secrets[0] != nil {
			return secrets[0].password
		}
	case otherContent:
		if secrets[1] != nil {
			return secrets[1].password
		}
	case firstPassword:
		if secrets[0] != nil {
			return p.namespace[:1] + "0"
		}
	case junk:
		return "junk"
	case nodeCredential:
		return operatorPassword
	case accountToken, oldToken:
		if a := w.accounts[p.namespace]; a != nil && cred == accountToken {
			return a.tokens[len(a.tokens)-1]
		} else if a != nil {
			return a.tokens[0]
		}
	case stolenToken:
		other := w.accounts[map[string]string{"bob": "alice"}[p.namespace]]
		if other == nil {
			other = w.accounts["bob"]
		}
		return other.tokens[len(other.tokens)-1]
	case noCredential, credentialKinds:
	}
	return ""
}

// doPull pulls and compares the answer with the truth.
func (w *modelWorld) doPull(p *modelPod, name, password string, x *interruption) (ok bool) {
	proving := w.proving(p, password) // a report that comes while the pull is in progress does not count for it
	by := &registryPull{uid: p.uid, password: proving, begun: len(w.truth.revocations), departures: w.truth.departures}
	for _, s := range w.held(p) {
		if s.password == password && p.source == "api" {
			by.secrets = append(by.secrets, s.ref)
		}
	}
	if g, ok := w.bound(p, password); ok {
		by.secrets = append(by.secrets, g.ref())
	}
	x.pull = by
	lends := w.truth.lends(repositoryOf(name), p.namespace)
	fenced := w.truth.fenced(w.question(p, unknown, repositoryOf(name), proving))
	withheld := w.truth.withholds(w.question(p, unknown, repositoryOf(name), proving))
	p.asksFor(name)
	may := w.judged(p, name, proving)
	req := &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: name, Annotations: p.annotations()}, SandboxConfig: p.config(),
	}
	if password != "" {
		req.Auth = &runtimeapi.AuthConfig{Username: "tenant", Password: password}
	}
	var resp runtimeapi.PullImageResponse
	var err error
	began := x.how
	w.interrupted(x, func(ctx context.Context) {
		err = w.call(ctx, runtimeapi.ImageService_PullImage_FullMethodName, req, &resp)
	}, func() {
		w.lentTo(p, name, by, lends)
		if fenced && by.served {
			w.fail("safety: a pull of %s by %s, which a file excludes, is sent to the registry", name, p.uid)
		}
		if password == operatorPassword && withheld {
			w.counts["pull with a withheld credential"]++
			if by.served && !by.lent {
				w.fail("safety: a pull of %s by %s gets the image by the node's credential, which is for others", name, p.uid)
			}
		}
		maps.Copy(may, w.judged(p, name, proving))
		c := contentOf(resp.GetImageRef())
		if err == nil && proving != password {
			w.counts["pull for a service account"]++
		}
		switch {
		case err != nil:
			w.counts["pull failed"]++
		case by.served:
			w.counts["pull"]++
			ok = true
			if began == uninterrupted && password != "" && password != operatorPassword {
				at := pair{c, repositoryOf(name)}
				if w.truth.live[at] == nil {
					w.truth.live[at] = map[string]bool{}
				}
				w.truth.live[at][proving] = true
			}
		default:
			w.counts["pull answered with the image on the node"]++
			ok = true
			if !may[c] && !w.mayUseOne(p, c, repositoryOf(name)) && !w.truth.hasProof(pair{c, repositoryOf(name)}, proving) {
				w.fail("safety: a pull of %s by %s with %q is answered with %v, which is on the node", name, p.uid, password, c)
			}
		}
	})
	return ok
}

// doCreate creates a container; by is the name of the image as the kubelet resolved it.
func (w *modelWorld) doCreate(p *modelPod, name, image string, mounts []string, x *interruption) (id string,
	err error,
) {
	req := &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.sandbox, SandboxConfig: p.config(),
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: image, UserSpecifiedImage: w.userImage(name)},
		},
	}
	for _, m := range mounts {
		c, _ := w.on(m)
		req.Config.Mounts = append(req.Config.Mounts, &runtimeapi.Mount{
			ContainerPath: "/m", Image: &runtimeapi.ImageSpec{Image: c.id(), UserSpecifiedImage: w.userImage(m)},
		})
	}
	p.asksFor(name)
	mounted := make([]content, len(mounts))
	for i, m := range mounts {
		p.asksFor(m)
		mounted[i], _ = w.on(m)
	}
	use := func() {
		w.uses(p, contentOf(image), name)
		for i, m := range mounts {
			w.uses(p, mounted[i], m)
		}
	}
	use()
	x.may, x.key = w.mayStart(p, append(mounts, name)), w.notary.key
	var resp runtimeapi.CreateContainerResponse
	var failed error // of the call, which may end after this function returns
	w.interrupted(x, func(ctx context.Context) {
		failed = w.call(ctx, runtimeapi.RuntimeService_CreateContainer_FullMethodName, req, &resp)
	}, func() {
		maps.Copy(x.may, w.mayStart(p, append(mounts, name)))
		id, err = resp.GetContainerId(), failed
		if err == nil {
			w.counts["container created"]++
			use() // a create is judged again after a revocation
		} else {
			w.counts["container not created"]++
		}
	})
	return id, err
}

// uses notes that a pod creates a container on an image, or has started one.
func (w *modelWorld) uses(p *modelPod, c content, name string) {
	repositories := []string{repositoryOf(name)}
	if w.userImage(name) == "" {
		repositories = modelRepositories()
	}
	for _, r := range repositories {
		w.truth.used(w.question(p, c, r, ""))
	}
}

func (w *modelWorld) userImage(name string) string {
	if w.kind.noUserImage {
		return ""
	}
	return name
}

// mayStart returns the contents that a container of a pod may have. A container that is created from one image may be
// put on another one only if the pod may use that one, under any name.
func (w *modelWorld) mayStart(p *modelPod, names []string) uses {
	may := uses{}
	for _, name := range names {
		if w.kind.noUserImage || slices.Contains(checkpointNames, name) {
			name = ""
		} else {
			name = repositoryOf(name)
		}
		maps.Copy(may, w.mayUse(p, name))
	}
	return may
}

// doStart starts a container, and compares it with the truth if it starts.
func (w *modelWorld) doStart(p *modelPod, id string) error {
	w.runtime.mu.Lock()
	c := w.runtime.containers[id]
	w.runtime.mu.Unlock()
	err := w.call(context.Background(), runtimeapi.RuntimeService_StartContainer_FullMethodName,
		&runtimeapi.StartContainerRequest{ContainerId: id}, &runtimeapi.StartContainerResponse{})
	if err != nil {
		w.counts["container not started"]++
		// As with a create, the pod uses the image even if another policy then denies the container.
		if c != nil {
			for i, on := range c.real {
				w.uses(p, on, c.asked[i])
			}
		}
		return err
	}
	w.counts["container started"]++
	if w.signatures {
		w.notary.starts(p, c)
	}
	for i, on := range c.real {
		w.uses(p, on, c.asked[i])
		if i == 0 && w.kind.noEcho && w.podSource {
			// At a start after a restart, the gate has only the names in the pod's spec. The image may have the name of another
			// container there; the pod uses the same content.
			for name := range p.specNames() {
				w.uses(p, on, name)
			}
		}
		// A container that was restored on an image that the pod may use under another name is evidence for its own name.
		w.truth.restored(p.uid, on, []string{repositoryOf(c.asked[i])})
		if !c.may[on] && !w.mayUseOne(p, on, "") {
			w.fail("safety: a container of %s is started on %v, created as %s", p.uid, on, c.GetImage())
		}
	}
	return nil
}
