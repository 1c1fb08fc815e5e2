"""HTTP clients and everything else with third-party dependencies: controller and toolbox only."""
