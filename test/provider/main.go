// Command provider is the OpenTofu and Terraform provider of this project's
// tests. It needs no network and no account, and shows what the tests are about:
// drift, secrets, slow and failing resources, imports, ephemeral values.
//
//	terraform {
//	  required_providers {
//	    testing = { source = "terrace-dev/testing" }
//	  }
//	}
//
// `make tools` builds it into bin/providers, together with the CLI configuration
// bin/providers/cli.tfrc that has both tools take it from there.
package main

import (
	"context"
	"log"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-framework/resource"
)

// version is set when the provider is linked.
var version = "0.0.0"

func main() {
	options := providerserver.ServeOpts{Address: "registry.terraform.io/terrace-dev/testing"}
	if err := providerserver.Serve(context.Background(), func() provider.Provider { return testProvider{} }, options); err != nil {
		log.Fatal(err)
	}
}

// testProvider is the provider. It has no configuration.
type testProvider struct{}

var _ provider.ProviderWithEphemeralResources = testProvider{}

func (testProvider) Metadata(_ context.Context, _ provider.MetadataRequest, response *provider.MetadataResponse) {
	response.TypeName, response.Version = "testing", version
}

func (testProvider) Schema(context.Context, provider.SchemaRequest, *provider.SchemaResponse) {}

func (testProvider) Configure(context.Context, provider.ConfigureRequest, *provider.ConfigureResponse) {
}

func (testProvider) DataSources(context.Context) []func() datasource.DataSource { return nil }

func (testProvider) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{func() resource.Resource { return file{} }}
}

func (testProvider) EphemeralResources(context.Context) []func() ephemeral.EphemeralResource {
	return []func() ephemeral.EphemeralResource{func() ephemeral.EphemeralResource { return token{} }}
}
